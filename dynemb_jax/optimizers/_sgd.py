"""Gradient descent, plain and with momentum."""

from dataclasses import dataclass
from typing import ClassVar

from dynemb_jax.optimizers._base import (
    Decaying,
    LearningRate,
    NativeRule,
    check_flag,
    check_number,
)


@dataclass(frozen=True)
class Sgd(Decaying):
    """See :func:`sgd`."""

    def native(self) -> NativeRule:
        return NativeRule(optimizer=0, weight_decay=self.weight_decay)


def sgd(
    learning_rate: LearningRate,
    *,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Sgd:
    """Plain gradient descent: ``w -= lr * g``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        weight_decay: ``weight_decay * w`` is added to ``g``.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Sgd(learning_rate, weight_decay=weight_decay, max_grad_norm=max_grad_norm)


@dataclass(frozen=True)
class Momentum(Decaying):
    """See :func:`momentum`."""

    momentum: float = 0.9
    nesterov: bool = False
    vectors: ClassVar[tuple[str, ...]] = ("trace",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("momentum", self.momentum, 0.0, 1.0)
        check_flag("nesterov", self.nesterov)

    def native(self) -> NativeRule:
        kind = 5 if self.nesterov else 4
        return NativeRule(optimizer=kind, beta1=self.momentum, weight_decay=self.weight_decay)


def momentum(
    learning_rate: LearningRate,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Momentum:
    """Lazy momentum: traces decay and rows move only in steps that contain the row.

    ``trace = g + momentum * trace; w -= lr * trace``, or with ``nesterov``
    ``w -= lr * (g + momentum * trace)`` of the new trace.
    Polyak 1964; Sutskever et al., ICML 2013, in the form of ``optax.sgd``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        momentum: decay of the trace, in [0, 1).
        nesterov: whether to look one step of the trace ahead.
        weight_decay: ``weight_decay * w`` is added to ``g``, before the trace.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Momentum(
        learning_rate, momentum, nesterov, weight_decay=weight_decay, max_grad_norm=max_grad_norm
    )
