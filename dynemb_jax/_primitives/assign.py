"""assign: given rows for given keys. Result: token."""

from typing import Any

import jax
from jax.core import ShapedArray

from dynemb_jax._primitives.define import define, refuse_mapped, token_type


def _abstract_eval(*_: Any, **__: Any) -> list[ShapedArray]:
    return [token_type()]


def _batch(operands: Any, dims: Any, **_: Any) -> Any:
    del operands
    for dim in dims:
        refuse_mapped("assign", "an operand", dim)


assign_p = define("assign", _abstract_eval, _batch, keep=True)


def assign(
    group: int,
    table: int,
    token: jax.Array,
    count: jax.Array,
    pairs: jax.Array,
    values: tuple[jax.Array, ...],
) -> jax.Array:
    """Writes rows and, where given, state: values is (rows,) or (rows, state)."""
    plan = (table, int(len(values) == 2))
    return assign_p.bind(token, count, pairs, *values, group=group, plan=plan)[0]
