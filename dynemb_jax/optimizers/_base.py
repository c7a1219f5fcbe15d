"""What all optimizers share: the descriptor, its checks, and what the engine reads of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dynemb_jax.errors import ConfigError

# A number, or a function of the number of updates done so far (an optax schedule).
LearningRate = float | Callable[[Any], Any]


def is_number(value: object) -> bool:
    """Of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_learning_rate(rate: object) -> None:
    if callable(rate):
        return
    if not is_number(rate) or not math.isfinite(rate):  # pyright: ignore[reportArgumentType]
        raise ConfigError(
            f"learning_rate must be a finite number or a schedule (a callable of the step), got "
            f"{rate!r}; pass e.g. 0.05 or optax.cosine_decay_schedule(0.05, 1000)."
        )


def check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    if not is_number(value) or not low <= value < high:  # pyright: ignore[reportOperatorIssue]
        bound = f"in [{low}, {high})" if high < math.inf else f"at least {low}"
        raise ConfigError(f"{name} must be {bound}, got {value!r}; pass a number {bound}.")


def check_positive(name: str, value: object) -> None:
    # As float32, which the engine computes in, has them.
    low, high = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    if not is_number(value) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ConfigError(f"{name} must be a number above 0, got {value!r}; pass None or e.g. 1.0.")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}; pass {name}=True.")


class RowNumber(NamedTuple):
    """A number that each row has once; the engine keeps its four bytes in place of a float."""

    name: str
    dtype: np.dtype[Any]  # int32 or float32


class OutsideState(NamedTuple):
    """State of a rule that does not run in the engine: what a new row begins with."""

    vectors: tuple[float, ...]  # per state vector, in all of its columns
    scalars: tuple[int, ...]  # per number of the row, as the bits of an int32


@dataclass(frozen=True, kw_only=True)
class NativeRule:
    """What the engine reads of an optimizer (core/optimizer/optimizer.h)."""

    optimizer: int
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial_state: float = 0.0
    initial_scalar: float = 0.0
    weight_decay: float = 0.0
    l1: float = 0.0
    l2: float = 0.0
    initial_sum: float = 0.0
    outside: OutsideState | None = None  # in place of all of the above


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizer descriptions."""

    learning_rate: LearningRate
    max_grad_norm: float | None = field(default=None, kw_only=True)

    # Names of the state in dynemb_jax.get and assign: arrays [..., dim], numbers [...].
    vectors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_learning_rate(self.learning_rate)
        if self.max_grad_norm is not None:
            check_positive("max_grad_norm", self.max_grad_norm)

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """Per-row numbers in the state."""
        return ()

    def native(self) -> NativeRule:
        """The engine's view of this rule."""
        raise NotImplementedError


@dataclass(frozen=True)
class Decaying(Optimizer):
    """Base of the rules whose gradient may be ``g + weight_decay * w``."""

    weight_decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, 0.0)
