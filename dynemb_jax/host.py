"""Calls from the host: they wait for the Embeddings' token, then read or change tables."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dynemb_jax._primitives.assign import assign as assign_primitive
from dynemb_jax._primitives.erase import erase as erase_primitive
from dynemb_jax.config import TableConfig
from dynemb_jax.embeddings import Embeddings, at_version, checked_token
from dynemb_jax.errors import InputError, typed
from dynemb_jax.group import Group
from dynemb_jax.keys import Keys, keys, to_uint64

REFUSALS = ("budget", "pinned", "admission")
_MIN_KEYS = 16  # host calls pad their keys to powers of two, so that few programs compile


@dataclass(frozen=True)
class TableStats:
    """What a table holds and what happened to it since ``create``.

    Ids are counted with their duplicates: ``ids == hits + inserted + sum(refused.values())``.

    Attributes:
        rows: keys in the table.
        capacity: slots of the index.
        load: rows / capacity.
        bytes: index_bytes + row_bytes.
        index_bytes: memory of the index, in bytes.
        row_bytes: memory committed for rows, optimizer state, stamps and scores, in bytes.
        admission_bytes: memory of the counters of ``admission.frequency``, beside ``bytes``.
        waits: times the host waited for a GPU to make room while it had little else to do, over
            all tables; 0 on the CPU.
        growths: doublings of the index.
        rows_copied: rows that growth moved; 0 by design.
        lookups: training lookups.
        ids: ids of training lookups, without padding.
        hits: of them, ids whose key was there, or came earlier in the batch.
        inserted: of them, first occurrences of new keys.
        refused: of them, ids without a row, by reason: "budget", no room under
            ``on_full="drop"``; "pinned", no key that may make way under "evict"; "admission", an
            absent key that the table's rule did not let in.
        found: ids of ``train=False`` lookups whose key was there.
        missing: ids of ``train=False`` lookups whose key was not.
        padded: padding positions, of any lookup.
        updates: apply_gradients that reached the table.
        updated_rows: rows they moved.
        assigned: rows written by assign.
        assign_refused: rows that assign had no room for under ``on_full="drop"`` or "evict".
        erased: keys erased.
        evicted: keys that made way for new ones.
        expired: keys that were not touched within their time to live.
    """

    rows: int
    capacity: int
    load: float
    bytes: int
    index_bytes: int
    row_bytes: int
    admission_bytes: int
    waits: int
    growths: int
    rows_copied: int
    lookups: int
    ids: int
    hits: int
    inserted: int
    found: int
    missing: int
    padded: int
    updates: int
    updated_rows: int
    assigned: int
    assign_refused: int
    erased: int
    evicted: int
    expired: int
    refused: dict[str, int] = field(default_factory=dict)


class TableRows(NamedTuple):
    """Rows read by :func:`get`, as NumPy arrays in the shape of the keys."""

    found: np.ndarray  # bool[...]
    rows: np.ndarray  # float32[..., dim], whatever the dtype of the table
    state: dict[str, np.ndarray]  # optimizer state by name: [..., dim], or [...]


def wait(emb: Embeddings, call: str) -> Group:
    """Waits until the tables have done all that led to this Embeddings."""
    token = checked_token(emb)
    if isinstance(token, Tracer):
        raise InputError(
            f"{call} reads the tables on the host, got a traced Embeddings; call it outside of "
            "jit, or look keys up with lookup(train=False) inside."
        )
    with typed():
        jax.block_until_ready(token)
    return emb.group


def stats(emb: Embeddings) -> dict[str, TableStats]:
    """Returns statistics per table name; waits for the token."""
    group = wait(emb, "stats")
    with typed():
        native = group.native.stats(group.id, group.ordinal)
    result = {}
    for table, fields in zip(group.tables, native, strict=True):
        refused = {reason: fields.pop(f"refused_{reason}") for reason in REFUSALS}
        total = fields["index_bytes"] + fields["row_bytes"]
        load = fields["rows"] / fields["capacity"]
        result[table.name] = TableStats(load=load, bytes=total, refused=refused, **fields)
    return result


def get(emb: Embeddings, table: str, keys: Any) -> TableRows:
    """Reads rows and optimizer state of keys; waits for the token.

    Args:
        emb: the Embeddings.
        table: name of the table.
        keys: integers of any shape, or Keys.

    Returns:
        found, rows and state. A missing key has the table's missing row and a state of zeros.

    Raises:
        UnknownTableError, InputError, ClosedError.
    """
    group = wait(emb, "get")
    position = group.table_position(table)
    config = group.tables[position]
    words = to_uint64(keys)
    flat = np.ascontiguousarray(words.reshape(-1))
    found = np.zeros(flat.size, np.uint8)
    rows = np.zeros((flat.size, config.dim), np.float32)
    width = sum(size for _, size in _state_columns(config))
    state = np.zeros((flat.size, width), np.float32)
    with typed():
        group.native.get_rows(group.id, group.ordinal, position, flat, found, rows, state)
    shape = words.shape
    return TableRows(
        found.astype(bool).reshape(shape),
        rows.reshape(*shape, config.dim),
        _split_state(config, state, shape),
    )


def contains(emb: Embeddings, table: str, keys: Any) -> np.ndarray:
    """Tells which keys have a row: bool in the shape of the keys; waits for the token."""
    return get(emb, table, keys).found


def _state_columns(config: TableConfig) -> list[tuple[str, int]]:
    vectors = [(name, int(config.dim)) for name in config.optimizer.vectors]
    return vectors + [(number.name, 1) for number in config.optimizer.scalars]


def _split_state(
    config: TableConfig, state: np.ndarray, shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    dtypes = dict(config.optimizer.scalars)
    parts, at = {}, 0
    for name, width in _state_columns(config):
        columns = state[:, at : at + width]
        at += width
        if name in dtypes:
            # The engine keeps whole numbers in the place of a float, bit for bit.
            parts[name] = columns[:, 0].copy().view(dtypes[name]).reshape(shape)
        else:
            parts[name] = columns.reshape(*shape, width).copy()
    return parts


def _padded_keys(given: Any) -> tuple[tuple[int, ...], jax.Array, jax.Array, int]:
    """Shape, count, pairs padded to a power of two, and that power."""
    wide = given if isinstance(given, Keys) else keys(given)
    shape = wide.shape
    pairs = jnp.asarray(wide.pairs).reshape(-1, 2)
    count = pairs.shape[0]
    capacity = max(_MIN_KEYS, 1 << max(0, count - 1).bit_length())
    pairs = jnp.pad(pairs, ((0, capacity - count), (0, 0)))
    return shape, jnp.array([count], jnp.int32), pairs, capacity


def _padded_rows(name: str, values: Any, shape: tuple[int, ...], capacity: int) -> jax.Array:
    array = jnp.asarray(values)
    if array.shape != shape:
        raise InputError(f"{name} must have shape {shape}, got {array.shape}; one row per key.")
    flat = array.astype(jnp.float32).reshape(-1, shape[-1])
    return jnp.pad(flat, ((0, capacity - flat.shape[0]), (0, 0)))


def assign(emb: Embeddings, table: str, keys: Any, rows: Any, state: Any = None) -> Embeddings:
    """Writes rows for keys, inserting what is absent.

    Args:
        emb: the current Embeddings.
        table: name of the table.
        keys: integers of any shape, or Keys. Of equal keys the last one stays.
        rows: numbers ``(*keys.shape, dim)``, rounded to the nearest in the table's dtype.
        state: optimizer state as :func:`get` returns it, all names; None gives these rows the
            initial state, whether they are new or not.

    Returns:
        The next Embeddings.

    Raises:
        InputError: shapes or names that do not fit.
        StaleStateError: emb is not the current state.
        TableFullError, TableMemoryError: no room; nothing has changed.
    """
    token = checked_token(emb)
    group = emb.group
    position = group.table_position(table)
    config = group.tables[position]
    shape, count, pairs, capacity = _padded_keys(keys)
    values = [_padded_rows("rows", rows, (*shape, int(config.dim)), capacity)]
    columns = _state_columns(config)
    if state is not None:
        names = [name for name, _ in columns]
        if not isinstance(state, dict) or sorted(state) != sorted(names):
            got = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(
                f"state of table {table!r} must be a dict of {names}, got {got}; pass what get "
                "returned, or None for the initial state."
            )
        dtypes = dict(config.optimizer.scalars)
        parts = []
        for name, width in columns:
            given = jnp.asarray(state[name])
            if name in dtypes:
                bits = jax.lax.bitcast_convert_type(given.astype(dtypes[name]), jnp.float32)
                given = jnp.expand_dims(bits, -1)
            parts.append(_padded_rows(f"state {name!r}", given, (*shape, width), capacity))
        if parts:
            values.append(jnp.concatenate(parts, axis=1))
    with typed():
        token = assign_primitive(group.id, position, token, count, pairs, tuple(values))
        group.settle(token)
    return Embeddings(token, group)


def erase(emb: Embeddings, table: str, keys: Any) -> Embeddings:
    """Forgets keys; absent ones are ignored. A key that comes back starts afresh.

    Args:
        emb: the current Embeddings.
        table: name of the table.
        keys: integers of any shape, or Keys.

    Returns:
        The next Embeddings. Activations looked up before cannot be applied to it.

    Raises:
        UnknownTableError, InputError, StaleStateError.
    """
    token = checked_token(emb)
    position = emb.group.table_position(table)
    _, count, pairs, _ = _padded_keys(keys)
    with typed():
        token = erase_primitive(emb.group.id, position, token, count, pairs)
        emb.group.settle(token)
    return Embeddings(token, emb.group)


def resync(emb: Embeddings) -> Embeddings:
    """Returns an Embeddings to go on from the tables as they are, whatever became of ``emb``.

    For a step that failed or was interrupted, or whose result was lost. What the tables had done
    by then stays done. Programs that are still queued find their tokens stale and change nothing.
    """
    if not isinstance(emb, Embeddings):
        checked_token(emb)
    _refuse_traced(emb, "resync")
    emb.group.check_open()
    return at_version(emb.group, emb.group.renew())


def close(emb: Embeddings) -> None:
    """Frees the tables; later use of any of their Embeddings raises ClosedError. Idempotent.

    Compiled functions keep what they were called with alive, tables included: close before a
    notebook cell creates the same tables again.
    """
    if not isinstance(emb, Embeddings):
        checked_token(emb)
    _refuse_traced(emb, "close")
    emb.group.close()


def _refuse_traced(emb: Embeddings, call: str) -> None:
    if isinstance(emb.token, Tracer):
        raise InputError(
            f"{call} runs outside of jit, got a traced Embeddings; call it before or after the "
            "jitted function."
        )
