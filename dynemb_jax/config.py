"""What a table is and which features read it. Frozen, checked when made."""

import dataclasses
import difflib
import math
import re
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from dynemb_jax import admission as admissions
from dynemb_jax import eviction as policies
from dynemb_jax import initializers, optimizers
from dynemb_jax.errors import ConfigError

COMBINERS = (None, "sum", "mean", "sqrtn")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,255}")
_MAX_DIM = 1 << 20
_MAX_ROWS = 1 << 40
# In the order of RowType in core/row_type.h.
ROW_DTYPES = tuple(np.dtype(dtype) for dtype in (np.float32, jnp.bfloat16, np.float16))


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return (_is_count(value) or isinstance(value, float | np.floating)) and math.isfinite(
        value  # pyright: ignore[reportArgumentType]
    )


class _Strict(type):
    """Says which field was meant where a keyword is unknown, and stays a TypeError."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = [f.name for f in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
                hint = _ELSEWHERE.get(name, hint)
                raise UnknownFieldError(f"{cls.__name__} has no field {name!r}; {hint}")
        return super().__call__(*args, **kwargs)


# Words that belong to a policy.
_ELSEWHERE = {
    "max_rows": "write eviction=dynemb_jax.eviction.lru(max_rows=...), or another policy.",
    "ttl": "write eviction=dynemb_jax.eviction.ttl(dynemb_jax.eviction.lru(), steps=...).",
}


class UnknownFieldError(ConfigError, TypeError):
    """A field that the configuration does not have."""


def _rounded(number: Any, dtype: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(number, np.float64).astype(dtype)


@dataclass(frozen=True)
class TableConfig(metaclass=_Strict):
    """A table: rows of ``dim`` numbers for any 64-bit keys, with no vocabulary size.

    Attributes:
        name: letters, digits, ``_``, ``-`` and ``.``; first values of rows depend on it.
        dim: columns of a row.
        dtype: of the rows: float32, bfloat16 or float16. Optimizer state is float32 in any case,
            and so is all arithmetic.
        rounding: of what updates write to rows of 16 bits. "stochastic": up or down, either as
            often as it is near, by random bits of seed, table name, key, column and step; steps
            that are smaller than a row can show add up in the mean. It keeps the key in the row
            (8 bytes, rounded up to 16 with the optimizer's numbers). "nearest": such steps are
            lost. None: "stochastic" for 16 bits.
        output_dtype: of the rows that ``lookup`` returns; None: ``dtype``.
        optimizer: how rows learn, from :mod:`dynemb_jax.optimizers`.
        initializer: first values of rows, from :mod:`dynemb_jax.initializers`.
        eviction: which keys to forget when the table is full, from :mod:`dynemb_jax.eviction`;
            None: tables grow. A policy needs its ``max_rows``, ``max_bytes``, or a time to live.
        admission: which keys to let in, from :mod:`dynemb_jax.admission`; None: all.
        max_load: share of the index's slots in use before it doubles, in (0, 1).
        initial_rows: rows to make room for at the start.
        max_bytes: budget for index, rows and optimizer state, in bytes; None: the machine's.
        on_full: what new keys meet when the table is full. "error": TableFullError, nothing
            changed. "drop": the missing row, counted in ``stats(emb)[name].refused``. "evict":
            another key makes way, as the policy says. None, the default, is "evict" with a policy
            and "error" without.
        placement: where rows live; "device".
        missing_row: what keys without a row look like: a number for all columns, or
            "initializer" for the first values they would get.
        trainable: False leaves rows as they are in ``apply_gradients``.

    Raises:
        ConfigError: a value that cannot work.
        NotImplementedError: an option of a later release.
    """

    name: str
    dim: int
    _: KW_ONLY
    dtype: Any = np.float32
    rounding: str | None = None
    output_dtype: Any = None
    optimizer: optimizers.Optimizer = field(default_factory=lambda: optimizers.adagrad(0.05))
    initializer: initializers.Initializer = field(default_factory=initializers.uniform)
    eviction: policies.Policy | None = None
    admission: admissions.Rule | None = None
    max_load: float = 0.85
    initial_rows: int = 0
    max_bytes: int | None = None
    on_full: str | None = None
    placement: Any = "device"
    missing_row: float | str = 0.0
    trainable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name must be 1 to 255 letters, digits, '_', '-' or '.', got {self.name!r}; "
                "write e.g. TableConfig('items', dim=64)."
            )
        if not _is_count(self.dim) or not 0 < self.dim <= _MAX_DIM:
            self._reject("dim", f"a whole number in [1, {_MAX_DIM}]", "dim=64")
        if not isinstance(self.optimizer, optimizers.Optimizer):
            self._reject("optimizer", "one of dynemb_jax.optimizers", "optimizers.adagrad(0.05)")
        if not isinstance(self.initializer, initializers.Initializer):
            self._reject("initializer", "one of dynemb_jax.initializers", "initializers.normal()")
        if self.admission is not None and not isinstance(self.admission, admissions.Rule):
            self._reject("admission", "one of dynemb_jax.admission", "admission.frequency(2)")
        self._check_capacity()
        self._check_dtypes()
        is_default = isinstance(self.missing_row, str) and self.missing_row == "initializer"
        if not is_default and (
            isinstance(self.missing_row, str) or not _is_number(self.missing_row)
        ):
            self._reject("missing_row", "a finite number or 'initializer'", "missing_row=0.0")
        if not is_default and not np.isfinite(_rounded(self.missing_row, self.dtype)):
            self._reject("missing_row", f"in the range of {self.dtype}", "missing_row=0.0")
        if not isinstance(self.trainable, bool):
            self._reject("trainable", "True or False", "trainable=False")
        self._check_later_options()

    def _check_capacity(self) -> None:
        if not _is_number(self.max_load) or not 0.0 < self.max_load < 1.0:
            self._reject("max_load", "a number in (0, 1)", "max_load=0.85")
        if not _is_count(self.initial_rows) or not 0 <= self.initial_rows < _MAX_ROWS:
            self._reject("initial_rows", "a whole number in [0, 2**40)", "initial_rows=100_000")
        is_bytes = _is_count(self.max_bytes) and 0 < (self.max_bytes or 0) < 1 << 63
        if self.max_bytes is not None and not is_bytes:
            self._reject("max_bytes", "bytes in (0, 2**63) or None", "max_bytes=8 << 30")
        if self.on_full not in (None, "error", "drop", "evict"):
            self._reject("on_full", "'error', 'drop' or 'evict'", "on_full='drop'")
        self._check_eviction()

    def _check_eviction(self) -> None:
        policy = self.eviction
        if policy is not None and not isinstance(policy, policies.Policy):
            self._reject(
                "eviction", "one of dynemb_jax.eviction", "eviction.lru(max_rows=1_000_000)"
            )
        if self.on_full is None:
            object.__setattr__(self, "on_full", "error" if policy is None else "evict")
        if policy is None:
            if self.on_full == "evict":
                raise ConfigError(
                    f"table {self.name!r}: on_full='evict' needs a policy that says which keys "
                    "make way; write e.g. eviction=dynemb_jax.eviction.lru(max_rows=1_000_000), or "
                    "on_full='drop'."
                )
            if self.on_full == "drop" and self.max_bytes is None:
                raise ConfigError(
                    f"table {self.name!r}: on_full='drop' says what new keys meet at a bound, and "
                    "there is none; write max_bytes=8 << 30 beside it, or "
                    "eviction=dynemb_jax.eviction.lru(max_rows=1_000_000), or leave on_full out."
                )
            return
        if policy.max_rows is None and self.max_bytes is None and not policy.has_ttl:
            raise ConfigError(
                f"table {self.name!r}: eviction={policy!r} has no bound, so nothing would ever be "
                "evicted; write max_rows=1_000_000 in the policy, max_bytes in the TableConfig, or "
                "eviction.ttl(policy, steps=10_000)."
            )
        if policy.max_rows is not None and self.initial_rows > policy.max_rows:
            raise ConfigError(
                f"table {self.name!r}: initial_rows={self.initial_rows} are more than the policy's "
                f"max_rows={policy.max_rows}; lower initial_rows."
            )

    def _check_later_options(self) -> None:
        if self.placement != "device":
            self._not_yet("placement", "use placement='device'")

    def _check_dtypes(self) -> None:
        object.__setattr__(self, "dtype", self._row_dtype("dtype"))
        if self.output_dtype is None:
            object.__setattr__(self, "output_dtype", self.dtype)
        object.__setattr__(self, "output_dtype", self._row_dtype("output_dtype"))
        if self.rounding not in (None, "stochastic", "nearest"):
            self._reject("rounding", "'stochastic', 'nearest' or None", "rounding='nearest'")
        if self.dtype == np.float32 and self.rounding is not None:
            raise ConfigError(
                f"table {self.name!r}: rounding={self.rounding!r} is for rows of 16 bits, these "
                "are float32; leave rounding out, or write dtype=jnp.bfloat16."
            )
        if self.dtype != np.float32 and self.rounding is None:
            object.__setattr__(self, "rounding", "stochastic")

    def _row_dtype(self, option: str) -> np.dtype[Any]:
        try:
            dtype = np.dtype(getattr(self, option))
        except TypeError:
            dtype = None
        if dtype not in ROW_DTYPES:
            self._reject(option, "float32, bfloat16 or float16", f"{option}=jnp.bfloat16")
        return dtype  # pyright: ignore[reportReturnType]

    def _reject(self, option: str, expected: str, example: str) -> None:
        raise ConfigError(
            f"table {self.name!r}: {option} must be {expected}, got {getattr(self, option)!r}; "
            f"write e.g. {example}."
        )

    def _not_yet(self, option: str, instead: str) -> None:
        raise NotImplementedError(
            f"table {self.name!r}: {option}={getattr(self, option)!r} is not available yet; "
            f"{instead}."
        )


@dataclass(frozen=True)
class FeatureConfig(metaclass=_Strict):
    """A feature: which table its ids look up, and how bags of ids are pooled.

    Attributes:
        table: the table; several features may share one.
        combiner: None returns a row per id; "sum", "mean" and "sqrtn" pool over the last axis
            of the ids, with weights w: ``sum(w v)``, over ``sum(w)``, over ``sqrt(sum(w**2))``.

    Raises:
        ConfigError: a value that cannot work.
    """

    table: TableConfig
    combiner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ConfigError(
                f"FeatureConfig needs a TableConfig, got {self.table!r}; "
                "write FeatureConfig(TableConfig('items', dim=64))."
            )
        if self.combiner not in COMBINERS:
            raise ConfigError(
                f"feature of table {self.table.name!r}: combiner must be None, 'sum', 'mean' or "
                f"'sqrtn', got {self.combiner!r}; write e.g. combiner='mean'."
            )
