"""How a verb of the engine becomes a JAX primitive. The only module that knows JAX internals."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import dispatch
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, partial_eval

from dynemb_jax import _registration as _registration
from dynemb_jax.errors import InputError

# Parameters every primitive has: `group`, the id of the table group, and `plan`, a flat tuple of
# integers for the handler. Others only describe shapes and do not reach the handler.
NATIVE_PARAMETERS = ("group", "plan")


def define(
    verb: str,
    abstract_eval: Callable[..., Sequence[ShapedArray]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int | None]]],
    *,
    keep: bool,
) -> Primitive:
    """Makes the primitive ``dynemb_<verb>``; operand 0 and result 0 are the token.

    Args:
        verb: stem of the native handler's name.
        abstract_eval: types of operands and parameters to types of results.
        batch: the batching rule.
        keep: run it even where nothing uses its results. A dropped update would otherwise vanish
            without a word; kept, it moves the version, and the older token is found stale.
    """
    name = f"dynemb_{verb}"
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(abstract_eval)
    primitive.def_impl(functools.partial(dispatch.apply_primitive, primitive))
    # No JAX effect: it would cost the fast dispatch path (80 us a call). The token orders
    # calls; the side effect of the lowered call keeps XLA from merging or dropping them.
    rule = jax.ffi.ffi_lowering(name, has_side_effect=True, operand_output_aliases={0: 0})

    def lower(ctx: Any, *operands: Any, group: int, plan: tuple[int, ...], **_: Any) -> Any:
        # Without shard_map XLA would run the call once per device, on the whole batch.
        devices = getattr(ctx.module_context.axis_context, "num_devices", 1)
        if devices is not None and devices > 1:
            raise NotImplementedError(
                f"{verb} in a program for {devices} devices is not available yet: tables live on "
                "one device. Keep the Embeddings and its ids on that device, in a program of its "
                "own, and move acts.rows to the others."
            )
        return rule(ctx, *operands, group=np.int64(group), plan=np.array(plan, np.int64))

    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, lower, platform=platform)
    batching.primitive_batchers[primitive] = batch
    if keep:
        partial_eval.dce_rules[primitive] = _keep
    return primitive


def _keep(*rule_operands: Any) -> tuple[list[bool], Any]:
    eqn = rule_operands[-1]  # JAX 0.12 passes one operand more before it
    return [True] * len(eqn.invars), eqn


def refuse_mapped(verb: str, what: str, dim: int | None) -> None:
    """Raises InputError where a batching rule meets an operand that it cannot batch."""
    if dim is not None:
        raise InputError(
            f"{verb} under vmap: {what} is mapped, but there is one set of tables; map ids and "
            "gradients only, and keep the Embeddings out (in_axes=None, out_axes=None)."
        )


def to_front(operand: Any, dim: int | None, size: int) -> Any:
    """The operand with its mapped axis first, repeated where it is not mapped."""
    if dim is None:
        return jax.numpy.broadcast_to(operand, (size, *operand.shape))
    return jax.numpy.moveaxis(operand, dim, 0)


def token_type() -> ShapedArray:
    """The type of a token: the version of a table group."""
    return ShapedArray((1,), np.dtype(np.int32))
