"""Transformations of optax as rules of rows: what their state is, and whether they can be."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dynemb_jax.errors import ConfigError
from dynemb_jax.optimizers._base import (
    LearningRate,
    NativeRule,
    Optimizer,
    OutsideState,
    RowNumber,
    check_flag,
)

# Two lengths of a row: an array that is as long as both is a vector of the row.
_DIM, _OTHER_DIM = 5, 7
_TRIAL_STEPS = 3
_STORED = {"float32": "float32", "int32": "int32", "uint32": "int32", "bool": "int32"}


class StateLeaf(NamedTuple):
    """One array of a transformation's state, for one row."""

    name: str
    role: str  # "vector": [dim] of the row; "number": one of the row; "step": the update's count
    dtype: np.dtype[Any]  # as the transformation has it
    first: float  # its value, or that of all its elements, in a new row

    @property
    def number(self) -> RowNumber:
        """How a row keeps it, where it is one number."""
        return RowNumber(self.name, np.dtype(_STORED[self.dtype.name]))


@dataclass(frozen=True, repr=False)
class FromOptax(Optimizer):
    """See :func:`from_optax`."""

    # In the transformation itself; its updates are added as they are.
    learning_rate: LearningRate = field(default=1.0, init=False)
    transformation: Any = field(kw_only=True)
    count: str = field(default="global", kw_only=True)
    rowwise: bool = field(default=False, kw_only=True)
    leaves: tuple[StateLeaf, ...] = field(init=False, compare=False)
    treedef: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("rowwise", self.rowwise)
        if self.count not in ("global", "row"):
            raise ConfigError(
                f"count must be 'global' or 'row', got {self.count!r}; pass 'global' to count the "
                "updates of all tables, 'row' for those of the row."
            )
        transformation = self.transformation
        if not all(callable(getattr(transformation, part, None)) for part in ("init", "update")):
            raise ConfigError(
                f"from_optax needs an optax transformation, got {transformation!r}; pass e.g. "
                "from_optax(optax.adam(1e-3))."
            )
        trial = _Trial(transformation)
        object.__setattr__(self, "leaves", trial.leaves(self.count == "global"))
        if not self.rowwise:
            trial.check_elementwise()
        object.__setattr__(self, "treedef", trial.treedef)

    def __repr__(self) -> str:
        # Without the addresses of functions: equal programs of two processes look the same.
        state = ", ".join(leaf.name for leaf in self.leaves if leaf.role != "step")
        options = f"count={self.count!r}, rowwise={self.rowwise}"
        return f"FromOptax(state=({state}), {options}, max_grad_norm={self.max_grad_norm})"

    @property
    def vectors(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the arrays that are as long as the row."""
        return tuple(leaf.name for leaf in self.leaves if leaf.role == "vector")

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """Numbers of the row."""
        return tuple(leaf.number for leaf in self.leaves if leaf.role == "number")

    @property
    def uses_step(self) -> bool:
        """Whether the number of updates is part of the state."""
        return any(leaf.role == "step" for leaf in self.leaves)

    def native(self) -> NativeRule:
        vectors = tuple(leaf.first for leaf in self.leaves if leaf.role == "vector")
        scalars = tuple(
            int(np.array(leaf.first, leaf.number.dtype).view(np.int32))
            for leaf in self.leaves
            if leaf.role == "number"
        )
        return NativeRule(optimizer=0, outside=OutsideState(vectors, scalars))


class _Trial:
    """A transformation tried on small rows, outside of any program."""

    def __init__(self, transformation: Any):
        self.transformation = transformation
        rng = np.random.default_rng(0)
        self.grad, self.row = rng.normal(size=(2, _DIM)).astype(np.float32)
        with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
            try:
                self.init = jax.jit(transformation.init)
                self.update = jax.jit(lambda g, state, w: transformation.update(g, state, w))
                self.first = self.init(self.row)
                other = jax.eval_shape(transformation.init, jnp.zeros(_OTHER_DIM, jnp.float32))
                self.states = [self.first]
                for _ in range(_TRIAL_STEPS):
                    _, state = self.update(self.grad, self.states[-1], self.row)
                    self.states.append(state)
            except Exception as error:
                raise ConfigError(
                    f"this optax transformation does not work on a row alone ({error}); in a table "
                    "it gets update(gradient, state, row), all float32[dim], and nothing else."
                ) from error
        self.paths, self.treedef = jax.tree_util.tree_flatten_with_path(self.first)
        kept = [self._types(state) for state in (self.first, self.states[-1])]
        if kept[0] != kept[1]:
            raise ConfigError(
                "the state of this optax transformation changes its structure, shapes or dtypes "
                f"from {kept[0]} to {kept[1]} in an update; a row keeps the ones it begins with."
            )
        self.other_shapes = [leaf.shape for leaf in jax.tree.leaves(other)]

    @staticmethod
    def _types(state: Any) -> tuple[Any, ...]:
        leaves, treedef = jax.tree.flatten(state)
        return (treedef, *((np.shape(leaf), str(jnp.asarray(leaf).dtype)) for leaf in leaves))

    def leaves(self, by_step: bool) -> tuple[StateLeaf, ...]:
        """What the state is made of; a count of updates is the step itself if ``by_step``."""
        paths = [[_key_name(key) for key in path] or ["state"] for path, _ in self.paths]
        short = Counter(path[-1] for path in paths)
        with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
            zeros = jax.tree.leaves(self.init(np.zeros(_DIM, np.float32)))
        leaves = []
        for position, (_, value) in enumerate(self.paths):
            path = paths[position]
            is_unique = short[path[-1]] == 1 and not path[-1].isdigit()
            name = path[-1] if is_unique else ".".join(path)
            leaf = self._leaf(name, value, self.other_shapes[position], zeros[position])
            counts = [np.asarray(jax.tree.leaves(state)[position]) for state in self.states]
            is_count = path[-1] == "count" and leaf.role == "number" and leaf.dtype == np.int32
            if by_step and is_count and [int(c) for c in counts] == list(range(len(counts))):
                leaf = leaf._replace(role="step")
            leaves.append(leaf)
        return tuple(leaves)

    def _leaf(self, name: str, value: Any, other_shape: tuple[int, ...], zeros: Any) -> StateLeaf:
        shape, dtype = np.shape(value), jnp.asarray(value).dtype
        is_vector = shape == (_DIM,) and other_shape == (_OTHER_DIM,)
        is_float = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize <= 4
        if is_vector and is_float:
            role = "vector"
        elif shape == other_shape == () and dtype.name in _STORED:
            role = "number"
        else:
            raise ConfigError(
                f"state {name!r} of this optax transformation is {dtype}{list(shape)} for a row of "
                f"{_DIM} numbers; a table keeps floats of up to 32 bits in the shape of the row, "
                "and single float32, int32, uint32 and bool."
            )
        values, same = np.asarray(value, np.float64), np.asarray(zeros, np.float64)
        first = float(values.reshape(-1)[0])
        if not (values == first).all() or not (same == first).all():
            raise ConfigError(
                f"state {name!r} of this optax transformation begins as a function of the row; a "
                "table begins all rows with the same numbers."
            )
        return StateLeaf(name, role, np.dtype(dtype), first)

    def check_elementwise(self) -> None:
        """Raises ConfigError where one column of a row has an influence on another one."""
        for scale in (1e-3, 1.0, 1e3):
            for which, factor in ((0, 1e4), (0, np.nan), (1, 1e4)):
                changed = [self.grad * np.float32(scale), self.row.copy()]
                results = [self._others(*changed)]
                changed[which] = changed[which].copy()
                changed[which][0] *= np.float32(factor)
                results.append(self._others(*changed))
                if any(
                    not np.array_equal(a, b, equal_nan=True) for a, b in zip(*results, strict=True)
                ):
                    raise ConfigError(
                        "this optax transformation is not element-wise: a column of a row has an "
                        "influence on others, through a norm or a mean, say. In a table each row "
                        "is a parameter of its own: pass rowwise=True if that is meant. What is "
                        "meant for all gradients together, such as clip_by_global_norm, belongs on "
                        "d_rows, before apply_gradients."
                    )

    def _others(self, grad: np.ndarray, row: np.ndarray) -> list[np.ndarray]:
        """Updates and next state without column 0."""
        with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
            results = jax.tree.leaves(self.update(grad, self.states[1], row))
        arrays = [np.asarray(result, np.float64) for result in results]
        return [array[1:] if array.ndim else array for array in arrays]


def _key_name(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def from_optax(
    transformation: Any,
    *,
    count: str = "global",
    rowwise: bool = False,
    max_grad_norm: float | None = None,
) -> FromOptax:
    """Any element-wise transformation of optax, run by XLA on the rows of the batch.

    ``updates, state = transformation.update(g, state, w); w += updates``, for each row ``w`` of
    the batch with the sum ``g`` of its gradients, both float32[dim]. The state lives in the row:
    arrays in its shape (as float32), and single numbers (float32, int32, uint32, bool), under
    the last part of their names where that is unique ("mu"), else under all parts ("1.trace").
    Lazy: state changes in steps that contain the row. Learning rate and schedules are the
    transformation's own, ``apply_gradients(learning_rate=)`` is an error. As functions do, two
    transformations made alike differ: use one object in configurations that have to be equal.

    It costs copies of the rows, their state and gradients, each as long as the batch has ids,
    where the optimizers of this package change rows in place: take those where there is one.

    Args:
        transformation: ``optax.GradientTransformation``. It may need the row, but no other
            arguments.
        count: what int32 states named "count" are, which schedules and bias corrections of optax
            count updates with. "global": the updates of the Embeddings before this one (``step``
            of ``apply_gradients``), so that all rows are at the same point of a schedule; they
            take no memory. "row": the updates of the row itself, kept with it. A "count" that
            does not go up by one in every update is the row's own in any case.
        rowwise: allow transformations whose columns have an influence on each other, such as
            ``optax.lamb``. Their norms are norms of one row: ``clip_by_global_norm`` clips rows.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.

    Raises:
        ConfigError: no transformation, one that does not work on a row alone, whose state has
            other shapes or dtypes or begins as a function of the row, or whose columns have an
            influence on each other (found by trial; a transformation may hide it).
    """
    return FromOptax(
        transformation=transformation,
        count=count,
        rowwise=rowwise,
        max_grad_norm=max_grad_norm,
    )
