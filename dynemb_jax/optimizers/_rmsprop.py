"""RMSProp."""

from dataclasses import dataclass
from typing import ClassVar

from dynemb_jax.optimizers._base import Decaying, LearningRate, NativeRule, check_number


@dataclass(frozen=True)
class Rmsprop(Decaying):
    """See :func:`rmsprop`."""

    decay: float = 0.9
    eps: float = 1e-8
    initial_scale: float = 0.0
    vectors: ClassVar[tuple[str, ...]] = ("nu",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("decay", self.decay, 0.0, 1.0)
        check_number("eps", self.eps, 0.0)
        check_number("initial_scale", self.initial_scale, 0.0)

    def native(self) -> NativeRule:
        return NativeRule(
            optimizer=7,
            beta2=self.decay,
            epsilon=self.eps,
            initial_state=float(self.initial_scale),
            weight_decay=self.weight_decay,
        )


def rmsprop(
    learning_rate: LearningRate,
    *,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Rmsprop:
    """Lazy RMSProp, not centred: means decay and rows move only in steps that contain the row.

    ``nu = decay * nu + (1 - decay) * g**2; w -= lr * g / sqrt(nu + eps)``, nothing where that
    divides by 0. Hinton, lecture 6e of "Neural networks for machine learning" (2012), in the form
    of ``optax.rmsprop``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        decay: of the mean of squares, in [0, 1).
        eps: added under the root.
        initial_scale: first value of every ``nu``.
        weight_decay: ``weight_decay * w`` is added to ``g``, before its square is taken.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Rmsprop(
        learning_rate,
        decay,
        eps,
        initial_scale,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )
