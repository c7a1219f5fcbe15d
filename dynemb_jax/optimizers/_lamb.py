"""LAMB, with a trust ratio a row."""

from dataclasses import dataclass
from typing import ClassVar

from dynemb_jax.optimizers._base import Decaying, LearningRate, NativeRule, check_number


@dataclass(frozen=True)
class Lamb(Decaying):
    """See :func:`lamb`."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    vectors: ClassVar[tuple[str, ...]] = ("mu", "nu")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("b1", self.b1, 0.0, 1.0)
        check_number("b2", self.b2, 0.0, 1.0)
        check_number("eps", self.eps, 0.0)

    def native(self) -> NativeRule:
        return NativeRule(
            optimizer=13,
            beta1=self.b1,
            beta2=self.b2,
            epsilon=self.eps,
            weight_decay=self.weight_decay,
        )


def lamb(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Lamb:
    """Lazy LAMB: Adam's direction, in steps as long as the row is, times the learning rate.

    With ``mu`` and ``nu`` as in :func:`adam` and ``t`` = updates of the Embeddings, this one
    included::

        u = (mu / (1 - b1**t)) / (sqrt(nu / (1 - b2**t)) + eps) + weight_decay * w
        w -= lr * u * (norm(w) / norm(u))  # L2 over the row; 1 for the ratio where a norm is 0

    You et al., ICLR 2020 ("Large batch optimization for deep learning"), in the form of
    ``optax.lamb``, each row a layer of its own. The length of ``u`` cancels in the ratio, so the
    correction by ``t`` weighs little, and rows that arrive late need no count of their own.
    Rows that begin with zeros take one step of length ``lr * norm(u)`` first.

    Args:
        learning_rate: a number or a schedule (callable of the step): the share of its length that
            a row moves in a step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added outside the root.
        weight_decay: ``weight_decay * w`` is added to the step, whose moments do not see it.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Lamb(learning_rate, b1, b2, eps, weight_decay=weight_decay, max_grad_norm=max_grad_norm)
