"""erase: forgets keys. Result: token."""

from typing import Any

import jax
from jax.core import ShapedArray

from dynemb_jax._primitives.define import define, refuse_mapped, token_type


def _abstract_eval(*_: Any, **__: Any) -> list[ShapedArray]:
    return [token_type()]


def _batch(operands: Any, dims: Any, **_: Any) -> Any:
    del operands
    for dim in dims:
        refuse_mapped("erase", "an operand", dim)


erase_p = define("erase", _abstract_eval, _batch, keep=True)


def erase(
    group: int, table: int, token: jax.Array, count: jax.Array, pairs: jax.Array
) -> jax.Array:
    """Erases the first ``count`` keys of ``pairs``."""
    return erase_p.bind(token, count, pairs, group=group, plan=(table,))[0]
