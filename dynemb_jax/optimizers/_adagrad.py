"""Adagrad, with an accumulator a column or a row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dynemb_jax.optimizers._base import (
    Decaying,
    LearningRate,
    NativeRule,
    RowNumber,
    check_number,
)


@dataclass(frozen=True)
class Adagrad(Decaying):
    """See :func:`adagrad`."""

    initial_accumulator: float = 0.1
    eps: float = 1e-7
    vectors: ClassVar[tuple[str, ...]] = ("accumulator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_accumulator", self.initial_accumulator, 0.0)
        check_number("eps", self.eps, 0.0)

    def native(self) -> NativeRule:
        return NativeRule(
            optimizer=1,
            epsilon=self.eps,
            initial_state=float(self.initial_accumulator),
            weight_decay=self.weight_decay,
        )


def adagrad(
    learning_rate: LearningRate,
    *,
    initial_accumulator: float = 0.1,
    eps: float = 1e-7,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Adagrad:
    """Adagrad: ``a += g**2; w -= lr * g / sqrt(a + eps)``, nothing while ``a == 0``.

    Duchi, Hazan, Singer, JMLR 12 (2011), in the form of ``optax.adagrad``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        initial_accumulator: first value of every ``a``.
        eps: added under the root.
        weight_decay: ``weight_decay * w`` is added to ``g``, before its square is taken.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Adagrad(
        learning_rate,
        initial_accumulator,
        eps,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )


@dataclass(frozen=True)
class RowwiseAdagrad(Decaying):
    """See :func:`rowwise_adagrad`."""

    initial_accumulator: float = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_accumulator", self.initial_accumulator, 0.0)
        check_number("eps", self.eps, 0.0)

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """The sum of the row's mean squared gradients."""
        return (RowNumber("accumulator", np.dtype(np.float32)),)

    def native(self) -> NativeRule:
        return NativeRule(
            optimizer=6,
            epsilon=self.eps,
            initial_scalar=float(self.initial_accumulator),
            weight_decay=self.weight_decay,
        )


def rowwise_adagrad(
    learning_rate: LearningRate,
    *,
    initial_accumulator: float = 0.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> RowwiseAdagrad:
    """Adagrad with one accumulator a row: 4 to 16 bytes of state, whatever the ``dim``.

    ``a += mean(g**2); w -= lr * g / (sqrt(a) + eps)``, nothing while ``a`` and ``eps`` are 0.
    Mudigere et al., ISCA 2022 ("row-wise sparse AdaGrad").

    Args:
        learning_rate: a number or a schedule (callable of the step).
        initial_accumulator: first value of every ``a``.
        eps: added outside the root.
        weight_decay: ``weight_decay * w`` is added to ``g``, before the mean is taken.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return RowwiseAdagrad(
        learning_rate,
        initial_accumulator,
        eps,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )
