"""count_steps: updates done so far, as a value of the program. Results: token, steps."""

from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from dynemb_jax._primitives.define import define, refuse_mapped, token_type


def _abstract_eval(*_: Any, **__: Any) -> list[ShapedArray]:
    return [token_type(), ShapedArray((1,), np.dtype(np.int32))]


def _batch(operands: Any, dims: Any, **_: Any) -> Any:
    del operands
    refuse_mapped("apply_gradients", "the Embeddings", dims[0])


count_steps_p = define("count_steps", _abstract_eval, _batch, keep=False)


def count_steps(group: int, token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (token, steps []); the token orders the count before the update that uses it."""
    token, steps = count_steps_p.bind(token, group=group, plan=())
    return token, steps.reshape(())
