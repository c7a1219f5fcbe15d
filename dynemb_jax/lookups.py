"""lookup: ids to rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from dynemb_jax._autodiff.lookup import find_with_taps, lookup_with_taps
from dynemb_jax._primitives.features import COMBINER_CODES, FeaturePlan
from dynemb_jax._primitives.lookup import asked_tables
from dynemb_jax.embeddings import Activations, Embeddings, checked_token, nest, unnest
from dynemb_jax.errors import InputError, typed
from dynemb_jax.eviction import Custom
from dynemb_jax.group import Feature, Group
from dynemb_jax.inputs import FeatureIds, normalize, score_pairs
from dynemb_jax.keys import Keys

_ROWS_NAME = "dynemb_rows"

remat_policy = jax.checkpoint_policies.save_only_these_names(_ROWS_NAME)
"""Policy for ``jax.checkpoint`` that keeps looked-up rows, so that no lookup runs twice."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EvictedBatch:
    """Keys that made way for those of one lookup in one table, in the order in which they did.

    A pytree.
    """

    keys: Keys  # [ids of the table]: zeros behind the first `count`
    scores: Keys  # the same: their scores as 64 bits
    count: jax.Array  # int32[]


def _active(group: Group, ids: Any) -> tuple[list[int], list[FeatureIds]]:
    """Positions and normalized ids of the features that are looked up."""
    try:
        leaves = group.treedef.flatten_up_to(ids)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"ids must have the nest of the features, {group.treedef}: {error}; pass None for a "
            "feature that is not looked up."
        ) from None
    positions, inputs = [], []
    for position, (feature, leaf) in enumerate(zip(group.features, leaves, strict=True)):
        if leaf is None:
            continue
        feature_ids = normalize(leaf, feature.path)
        _check_feature(feature, feature_ids)
        positions.append(position)
        inputs.append(feature_ids)
    if not positions:
        raise InputError("lookup got ids for no feature; pass ids for at least one.")
    return positions, inputs


def _check_feature(feature: Feature, ids: FeatureIds) -> None:
    combiner = feature.config.combiner
    if combiner is not None and not ids.shape:
        raise InputError(
            f"feature {feature.path} pools over the last axis of its ids (combiner={combiner!r}), "
            "got ids of shape (); pass ids of shape (..., L)."
        )
    if combiner is None and ids.weights is not None:
        raise InputError(
            f"feature {feature.path} has weights but no combiner to use them; set combiner='sum', "
            "'mean' or 'sqrtn' in its FeatureConfig, or leave weights out."
        )


def _plans(group: Group, positions: Sequence[int], inputs: Sequence[FeatureIds]) -> Any:
    plans = []
    for position, ids in zip(positions, inputs, strict=True):
        feature = group.features[position]
        code = COMBINER_CODES[feature.config.combiner]
        weighted = ids.weights is not None
        table = feature.config.table
        scored = ids.scores is not None
        shape = (ids.wide, ids.padding, weighted, scored, ids.num_bags)
        # The engine gives what it keeps, or float32, which XLA converts.
        dtype = table.dtype if table.output_dtype == table.dtype else np.dtype(np.float32)
        plan = FeaturePlan(feature.table, int(table.dim), code, *shape, dtype=dtype)
        plans.append(plan)
    return tuple(plans)


def _with_scores(
    group: Group, positions: Sequence[int], inputs: Sequence[FeatureIds], scores: Any, train: bool
) -> list[FeatureIds]:
    """The inputs with the scores that custom eviction asks for."""
    if scores is not None and not train:
        raise InputError(
            "lookup(train=False) changes no scores, got scores=; leave them out, or train."
        )
    leaves = [None] * len(positions)
    if scores is not None:
        leaves = unnest(group, positions, scores, "scores", "pass None where there are none")
    scored = []
    for position, ids, leaf in zip(positions, inputs, leaves, strict=True):
        feature = group.features[position]
        wanted = train and isinstance(feature.config.table.eviction, Custom)
        if wanted and leaf is None:
            raise InputError(
                f"feature {feature.path}: its table evicts by custom scores, got none; pass "
                "scores= to lookup, one integer per id, in the nest of the features."
            )
        if leaf is not None and not wanted:
            raise InputError(
                f"feature {feature.path}: its table has no custom scores, got some; leave None "
                "there, or set eviction=dynemb_jax.eviction.custom(...)."
            )
        if leaf is not None:
            ids = ids._replace(scores=score_pairs(leaf, ids.shape, feature.path))
        scored.append(ids)
    return scored


def _asking(group: Group, plans: tuple[FeaturePlan, ...], train: bool) -> tuple[FeaturePlan, ...]:
    """The plans, of which those of tables that evict ask for what is evicted."""
    evicts = [train and table.on_full == "evict" for table in group.tables]
    plans = tuple(plan._replace(evicted=evicts[plan.table]) for plan in plans)
    if not any(plan.evicted for plan in plans):
        raise InputError(
            "lookup got return_evicted=True, but nothing can be evicted: "
            + (
                'no table of these features has on_full="evict"; set eviction= in its TableConfig, '
                if train
                else "lookup(train=False) changes nothing; train, "
            )
            + "or leave return_evicted out."
        )
    return plans


@overload
def lookup(
    emb: Embeddings,
    ids: Any,
    *,
    train: bool = True,
    taps: Any = None,
    scores: Any = None,
    return_evicted: Literal[False] = False,
) -> tuple[Activations, Embeddings]: ...
@overload
def lookup(
    emb: Embeddings,
    ids: Any,
    *,
    train: bool = True,
    taps: Any = None,
    scores: Any = None,
    return_evicted: Literal[True],
) -> tuple[Activations, Embeddings, dict[str, EvictedBatch]]: ...
def lookup(
    emb: Embeddings,
    ids: Any,
    *,
    train: bool = True,
    taps: Any = None,
    scores: Any = None,
    return_evicted: bool = False,
) -> tuple[Activations, Embeddings] | tuple[Activations, Embeddings, dict[str, EvictedBatch]]:
    """Looks ids up: finds or inserts (train), or only finds.

    Args:
        emb: the current Embeddings. With ``train=False`` an older one will do.
        ids: in the nest of the features; each leaf an integer array ``(...)``, Keys, Padded,
            Ragged, or None to leave the feature out. int32 is sign-extended, uint32 zero-extended
            to 64 bits; NumPy int64 passed outside of jit keeps all bits, inside of jit JAX has cut
            it: use :func:`dynemb_jax.keys`.
        train: True inserts absent keys, with their first values. False changes nothing: an absent
            key gives its table's ``missing_row``.
        taps: zeros from :func:`taps`, to receive the gradient of the rows; or None.
        scores: for tables with ``eviction.custom``: integers like the ids, larger for keys that are
            worth more, in the nest of the features, None for features of other tables. Negative
            ones count as 0; :func:`dynemb_jax.keys` carries 64 bits.
        return_evicted: True returns a third value: per name of a table with ``on_full="evict"`` an
            EvictedBatch of as many places as the table has ids in the call; usable inside of jit.
            Keys that expire are in :func:`dynemb_jax.drain_evicted` only.

    Returns:
        ``acts`` and the next Embeddings. ``acts.rows`` is in its table's ``output_dtype``, after
        pooling in at least float32: ``(..., dim)`` per feature, or with a combiner ``(..., dim)``
        of ids ``(..., L)``, ``(B, dim)`` of a Ragged of B bags. Padding gives zeros; a bag of
        nothing is 0. Weights are differentiable. Apply acts of a training lookup with
        :func:`apply_gradients`. With ``return_evicted`` the EvictedBatches as well.

    Raises:
        InputError: ids of a wrong type, shape or nest, lengths or row_splits outside of the ids.
        StaleStateError: emb is not the current state (train only).
        TableFullError, TableMemoryError: no room for new keys; nothing has changed.
    """
    if not isinstance(train, bool):
        raise InputError(
            f"train must be True or False, got {train!r}; it chooses the program, so it cannot be "
            "traced: make it a static argument."
        )
    token = checked_token(emb)
    group = emb.group
    positions, inputs = _active(group, ids)
    inputs = _with_scores(group, positions, inputs, scores, train)
    plans = _plans(group, positions, inputs)
    if not isinstance(return_evicted, bool):
        raise InputError(
            f"return_evicted must be True or False, got {return_evicted!r}; it chooses the program."
        )
    asking = _asking(group, plans, train) if return_evicted else plans
    tap_leaves = [None] * len(positions)
    if taps is not None:
        tap_leaves = unnest(group, positions, taps, "taps")
        for position, plan, i, tap in zip(positions, plans, inputs, tap_leaves, strict=True):
            if jnp.shape(tap) != plan.rows_shape(i.ids.shape):
                raise InputError(
                    f"feature {group.features[position].path}: taps must have shape "
                    f"{plan.rows_shape(i.ids.shape)}, got {jnp.shape(tap)}; make them with "
                    "dynemb_jax.taps(emb, ids)."
                )
    verb = lookup_with_taps if train else find_with_taps
    with typed():
        results = verb(group.id, asking, token, inputs, tap_leaves)
        group.settle(results.token)
    # The name must stand on the outputs: remat does not look into custom derivatives.
    dtypes = [group.features[position].config.table.output_dtype for position in positions]
    rows = [
        checkpoint_name(row.astype(dtype), _ROWS_NAME)
        for row, dtype in zip(results.rows, dtypes, strict=True)
    ]
    weights = tuple(i.weights for i in inputs) if train else ()
    splits = tuple(
        i.pad if p.combiner and i.num_bags is not None else None
        for p, i in zip(plans, inputs, strict=True)
    )
    splits = splits if train else ()
    residual = (results.header, results.indices, results.unique_rows, weights, splits)
    static = (group, tuple(positions), plans if train else None)
    acts = Activations(nest(group, positions, rows), residual, static)
    emb = Embeddings(results.token, group)
    if not return_evicted:
        return acts, emb
    evicted = {
        group.tables[table].name: EvictedBatch(Keys(gone), Keys(scored), count[0])
        for table, (gone, scored, count) in zip(asked_tables(asking), results.evicted, strict=True)
    }
    return acts, emb, evicted


def taps(emb: Embeddings, ids: Any) -> Any:
    """float32 zeros shaped like the rows that ``lookup(emb, ids)`` returns, in its nest.

    Differentiating a loss that calls ``lookup(emb, ids, taps=taps)`` for them gives the gradient
    of the rows, where lookup and loss are one function.
    """
    checked_token(emb)
    positions, inputs = _active(emb.group, ids)
    plans = _plans(emb.group, positions, inputs)
    zeros = [
        jnp.zeros(plan.rows_shape(i.ids.shape), jnp.float32)
        for plan, i in zip(plans, inputs, strict=True)
    ]
    return nest(emb.group, positions, zeros)
