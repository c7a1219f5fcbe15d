"""Host calls that forget many keys at once, tell which ones went, or give memory back."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dynemb_jax.embeddings import Embeddings, at_version
from dynemb_jax.errors import InputError, typed
from dynemb_jax.eviction import Policy
from dynemb_jax.group import Group
from dynemb_jax.host import wait


class EvictedKeys(NamedTuple):
    """Keys that made way for others or expired, in the order in which they did; NumPy arrays."""

    keys: np.ndarray  # uint64[n]
    scores: np.ndarray  # uint64[n], as they were then
    lost: int  # keys that were not recorded: the policy's `record` was too small


def erase_if(emb: Embeddings, table: str, *, score_below: int) -> Embeddings:
    """Forgets the keys whose score is less than ``score_below``; waits for the token.

    Args:
        emb: the current Embeddings.
        table: name of a table with an eviction policy, which says what scores mean.
        score_below: in [0, 2**64).

    Returns:
        The next Embeddings. Activations looked up before cannot be applied to it, if a key went.

    Raises:
        UnknownTableError, InputError, StaleStateError.
    """
    group, position = _target(emb, table, "erase_if")
    _policy(group, position, "erase_if")
    is_integer = isinstance(score_below, int | np.integer) and not isinstance(score_below, bool)
    if not is_integer or not 0 <= score_below < 1 << 64:
        raise InputError(
            f"score_below must be a whole number in [0, 2**64), got {score_below!r}; keys with a "
            "smaller score are erased."
        )
    below = int(score_below)
    return _changed(
        emb,
        lambda version: group.native.erase_below(group.id, group.ordinal, version, position, below),
    )


def clear(emb: Embeddings, table: str) -> Embeddings:
    """Forgets all keys of a table, which keeps its memory; waits for the token.

    Args:
        emb: the current Embeddings.
        table: name of the table.

    Returns:
        The next Embeddings. Activations looked up before cannot be applied to it, if a key went.

    Raises:
        UnknownTableError, InputError, StaleStateError.
    """
    group, position = _target(emb, table, "clear")
    return _changed(
        emb, lambda version: group.native.clear(group.id, group.ordinal, version, position)
    )


def shrink(emb: Embeddings) -> tuple[Embeddings, dict[str, int]]:
    """Gives memory back that tables do not need after many of their keys went; waits for the token.

    Each table is afterwards as large as a new one of its keys would be: index, rows and optimizer
    state. Every key keeps its row's values, state and score, in another place. Meanwhile it takes
    at most 64 MiB and 16 bytes for each key that finds its first bucket full; on a GPU 24 bytes for
    each such key, and as much again as stays of the piece of memory that is cut.

    Args:
        emb: the current Embeddings.

    Returns:
        The next Embeddings, and the bytes that each table has given back, by its name. Activations
        looked up before cannot be applied to it.

    Raises:
        InputError, StaleStateError, ClosedError.
        TableMemoryError: on a GPU, no memory to move keys meanwhile.
    """
    group = wait(emb, "shrink")
    version = int(np.asarray(emb.token)[0])
    with typed():
        version, freed = group.native.shrink(group.id, group.ordinal, version)
        names = (table.name for table in group.tables)
        return at_version(group, version), dict(zip(names, freed, strict=True))


def drain_evicted(emb: Embeddings, table: str) -> EvictedKeys:
    """Takes the keys that were evicted or expired since the last call; waits for the token.

    Args:
        emb: the Embeddings.
        table: name of a table whose policy has ``record=N``: so many keys are kept between two
            calls, 16 bytes each beside the table's budget; the first ones, the others are counted.

    Raises:
        UnknownTableError, InputError, ClosedError.
    """
    group, position = _target(emb, table, "drain_evicted")
    policy = _policy(group, position, "drain_evicted")
    if not policy.record:
        raise InputError(
            f"drain_evicted: table {table!r} records no evicted keys; write e.g. "
            "eviction=dynemb_jax.eviction.lru(..., record=100_000)."
        )
    with typed():
        keys, scores, lost = group.native.drain_evicted(group.id, group.ordinal, position)
    return EvictedKeys(np.array(keys, np.uint64), np.array(scores, np.uint64), lost)


def _target(emb: Embeddings, table: str, call: str) -> tuple[Group, int]:
    group = wait(emb, call)
    return group, group.table_position(table)


def _policy(group: Group, position: int, call: str) -> Policy:
    table = group.tables[position]
    if table.eviction is None:
        raise InputError(
            f"{call}: table {table.name!r} has no eviction policy, so its keys have no scores and "
            "none is evicted; write e.g. eviction=dynemb_jax.eviction.lru(max_rows=1_000_000)."
        )
    return table.eviction


def _changed(emb: Embeddings, change: Callable[[int], int]) -> Embeddings:
    version = int(np.asarray(emb.token)[0])
    with typed():
        return at_version(emb.group, change(version))
