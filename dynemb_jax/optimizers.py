"""Optimizers of table rows: frozen descriptions of rules that run in the engine.

Gradients of equal keys are summed first, then every row of the batch takes one step,
also where its gradient is zero. Rows that are not in the batch do not move ("lazy").
A gradient that is not finite spreads to its own row and to no other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dynemb_jax.errors import ConfigError

# A number, or a function of the number of updates done so far (an optax schedule).
LearningRate = float | Callable[[Any], Any]


def _check_learning_rate(rate: object) -> None:
    if callable(rate):
        return
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate):
        raise ConfigError(
            f"learning_rate must be a finite number or a schedule (a callable of the step), got "
            f"{rate!r}; pass e.g. 0.05 or optax.cosine_decay_schedule(0.05, 1000)."
        )


def _check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value < high:  # pyright: ignore[reportOperatorIssue]
        bound = f"in [{low}, {high})" if high < math.inf else f"at least {low}"
        raise ConfigError(f"{name} must be {bound}, got {value!r}; pass a number {bound}.")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}; pass {name}=True.")


class RowNumber(NamedTuple):
    """A number that each row has once; the engine keeps its four bytes in place of a float."""

    name: str
    dtype: np.dtype[Any]  # int32 or float32


@dataclass(frozen=True, kw_only=True)
class NativeRule:
    """What the engine reads of an optimizer (core/optimizer/optimizer.h)."""

    optimizer: int
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial_state: float = 0.0
    initial_scalar: float = 0.0


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizer descriptions."""

    learning_rate: LearningRate

    # Names of the state in dynemb_jax.get and assign: arrays [..., dim], numbers [...].
    vectors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check_learning_rate(self.learning_rate)

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """Per-row numbers in the state."""
        return ()

    def native(self) -> NativeRule:
        """The engine's view of this rule."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(Optimizer):
    """See :func:`sgd`."""

    def native(self) -> NativeRule:  # noqa: D102
        return NativeRule(optimizer=0)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """See :func:`momentum`."""

    momentum: float = 0.9
    nesterov: bool = False
    vectors: ClassVar[tuple[str, ...]] = ("trace",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("momentum", self.momentum, 0.0, 1.0)
        _check_flag("nesterov", self.nesterov)

    def native(self) -> NativeRule:  # noqa: D102
        return NativeRule(optimizer=5 if self.nesterov else 4, beta1=self.momentum)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """See :func:`adagrad`."""

    initial_accumulator: float = 0.1
    eps: float = 1e-7
    vectors: ClassVar[tuple[str, ...]] = ("accumulator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("initial_accumulator", self.initial_accumulator, 0.0)
        _check_number("eps", self.eps, 0.0)

    def native(self) -> NativeRule:  # noqa: D102
        return NativeRule(
            optimizer=1, epsilon=self.eps, initial_state=float(self.initial_accumulator)
        )


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """See :func:`rowwise_adagrad`."""

    initial_accumulator: float = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("initial_accumulator", self.initial_accumulator, 0.0)
        _check_number("eps", self.eps, 0.0)

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """The sum of the row's mean squared gradients."""
        return (RowNumber("accumulator", np.dtype(np.float32)),)

    def native(self) -> NativeRule:  # noqa: D102
        return NativeRule(
            optimizer=6, epsilon=self.eps, initial_scalar=float(self.initial_accumulator)
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """See :func:`adam`."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    bias_correction: str = "global"
    vectors: ClassVar[tuple[str, ...]] = ("mu", "nu")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("b1", self.b1, 0.0, 1.0)
        _check_number("b2", self.b2, 0.0, 1.0)
        _check_number("eps", self.eps, 0.0)
        if self.bias_correction not in ("global", "row"):
            raise ConfigError(
                f"bias_correction must be 'global' or 'row', got {self.bias_correction!r}; "
                "'global' counts the updates of all tables, 'row' those of the row."
            )

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """The row's own step count, where bias correction uses it."""
        return (RowNumber("count", np.dtype(np.int32)),) if self.bias_correction == "row" else ()

    def native(self) -> NativeRule:  # noqa: D102
        kind = 3 if self.bias_correction == "row" else 2
        return NativeRule(optimizer=kind, beta1=self.b1, beta2=self.b2, epsilon=self.eps)


def sgd(learning_rate: LearningRate) -> Sgd:
    """Plain gradient descent: ``w -= lr * g``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
    """
    return Sgd(learning_rate)


def momentum(
    learning_rate: LearningRate, *, momentum: float = 0.9, nesterov: bool = False
) -> Momentum:
    """Lazy momentum: traces decay and rows move only in steps that contain the row.

    ``trace = g + momentum * trace; w -= lr * trace``, or with ``nesterov``
    ``w -= lr * (g + momentum * trace)`` of the new trace.
    Polyak 1964; Sutskever et al., ICML 2013, in the form of ``optax.sgd``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        momentum: decay of the trace, in [0, 1).
        nesterov: whether to look one step of the trace ahead.
    """
    return Momentum(learning_rate, momentum, nesterov)


def adagrad(
    learning_rate: LearningRate, *, initial_accumulator: float = 0.1, eps: float = 1e-7
) -> Adagrad:
    """Adagrad: ``a += g**2; w -= lr * g / sqrt(a + eps)``, nothing while ``a == 0``.

    Duchi, Hazan, Singer, JMLR 12 (2011), in the form of ``optax.adagrad``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        initial_accumulator: first value of every ``a``.
        eps: added under the root.
    """
    return Adagrad(learning_rate, initial_accumulator, eps)


def rowwise_adagrad(
    learning_rate: LearningRate, *, initial_accumulator: float = 0.0, eps: float = 1e-8
) -> RowwiseAdagrad:
    """Adagrad with one accumulator a row: 4 to 16 bytes of state, whatever the ``dim``.

    ``a += mean(g**2); w -= lr * g / (sqrt(a) + eps)``, nothing while ``a`` and ``eps`` are 0.
    Mudigere et al., ISCA 2022 ("row-wise sparse AdaGrad").

    Args:
        learning_rate: a number or a schedule (callable of the step).
        initial_accumulator: first value of every ``a``.
        eps: added outside the root.
    """
    return RowwiseAdagrad(learning_rate, initial_accumulator, eps)


def adam(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    bias_correction: str = "global",
) -> Adam:
    """Lazy Adam: moments decay and rows move only in steps that contain the row.

    ``mu = b1 mu + (1 - b1) g; nu = b2 nu + (1 - b2) g**2;
    w -= lr * (mu / (1 - b1**t)) / (sqrt(nu / (1 - b2**t)) + eps)``.
    Kingma, Ba, ICLR 2015, in the form of ``optax.adam``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added outside the root.
        bias_correction: what ``t`` counts. "global": the updates of the Embeddings including
            this one, so a key first seen at step 10**6 gets nearly no correction. "row": the
            updates of the row itself (4 to 16 bytes more a row), so its first step is as large
            as any row's first step.
    """
    return Adam(learning_rate, b1, b2, eps, bias_correction)
