"""What the GPU benchmark measures: shapes, optimizers, and the batches drawn for them."""

import concurrent.futures
import dataclasses
import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shapes

import dynemb_jax as dj

SEED = 42
LEARNING_RATE = 0.01
ZIPF = "zipf1.05"


@dataclasses.dataclass(frozen=True)
class Draw:
    """Where ids come from; cases of equal draws share their batches."""

    tables: int
    ids: int  # a table and batch
    vocabulary: int  # of a table
    skew: str
    batches: int = 24


@dataclasses.dataclass(frozen=True)
class Case:
    """One line or two of step.csv per variant."""

    name: str
    draw: Draw
    dim: int
    optimizer: str
    filled: float = 1.0  # share of the vocabulary that is in the tables beforehand
    bag: int = 1  # ids in a bag; above 1 rows are pooled by their mean
    evaluates: bool = False  # a train=False lookup as well
    has_baseline: bool = True  # beside XLA's tables
    dtype: str = "float32"  # of rows, what lookups return, and gradients
    sequences: int = 0  # ids as a Ragged of so many, whose rows are not pooled; 0: as an array
    has_deterministic: bool = False  # beside tables of deterministic=True

    @property
    def num_ids(self) -> int:
        """Ids of a batch, all tables."""
        return self.draw.ids * self.draw.tables

    @property
    def label(self) -> str:
        """For people."""
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.name} D {self.dim} {self.optimizer}{dtype}"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes and repetitions of a run."""

    ids: int
    small_table: int
    large_table: int
    rounds: int  # each variant in turn, so that a slow moment of the machine hits both
    synchronised: int  # steps a round
    piped: int  # steps a round
    growth_steps: int


FULL = Scale(1 << 20, 1_677_721, 1 << 24, rounds=3, synchronised=10, piped=30, growth_steps=16)
QUICK = Scale(1 << 16, 100_000, 1 << 18, rounds=2, synchronised=3, piped=10, growth_steps=16)


def cases(scale: Scale) -> list[Case]:
    """Returns the cases of step.csv; those of one draw stand together."""
    ten = Draw(10, scale.ids // 10, scale.small_table, ZIPF)
    zipf = Draw(1, scale.ids, scale.large_table, ZIPF)
    many = Draw(200, scale.ids // 200, scale.large_table // 200, ZIPF)
    even = Draw(1, scale.ids, scale.large_table, "uniform")
    small = Draw(1, 1024, scale.small_table, ZIPF)
    bags = Draw(1, (scale.ids + 19) // 20 * 20, scale.large_table, ZIPF)
    events = Draw(1, scale.ids // 4, scale.small_table, ZIPF)
    plan = [
        Case("ten_tables", ten, 128, "sgd", filled=0.95, evaluates=True),
        Case("ten_tables", ten, 128, "adam", filled=0.95),
        Case("zipf", zipf, 128, "sgd", evaluates=True, has_deterministic=True),
        Case("zipf", zipf, 128, "adam"),
        Case("zipf", zipf, 128, "adagrad"),
        Case("zipf", zipf, 128, "rowwise_adagrad"),
        Case("zipf", zipf, 64, "sgd", evaluates=True),
        # Against float32: what half the bytes are worth. XLA's scatter of them is no peer.
        Case("zipf", zipf, 128, "sgd", evaluates=True, has_baseline=False, dtype="bfloat16"),
        Case("zipf", zipf, 128, "adam", has_baseline=False, dtype="bfloat16"),
        # Against "zipf": what many tables cost. XLA takes minutes to compile as many.
        Case("many_tables", many, 128, "sgd", evaluates=True, has_baseline=False),
        Case("uniform", even, 128, "sgd", evaluates=True),
        Case("uniform", even, 128, "adam"),
        Case("small_batch", small, 128, "sgd", has_deterministic=True),
        Case("pooled", bags, 128, "sgd", bag=20, evaluates=True),
        Case("sequences", events, 512, "sgd", evaluates=True, sequences=64),
        Case("sequences", events, 512, "adam", sequences=64),
    ]
    return [case for case in plan if hasattr(dj.optimizers, case.optimizer)]


def optimizer(name: str) -> Any:
    """Returns the description of an optimizer."""
    return getattr(dj.optimizers, name)(LEARNING_RATE)


def state_bytes(case: Case) -> int:
    """Bytes of optimizer state of one row."""
    per_row = {
        "sgd": 0,
        "adagrad": 4 * case.dim,
        "adam": 8 * case.dim,
        "rowwise_adagrad": 4,
    }
    return per_row[case.optimizer]


def floor_bytes(case: Case, unique_rows: float, op: str) -> float:
    """Bytes that must move once.

    A lookup reads every unique row and writes every output row; an update reads as many
    gradients, then reads and writes every unique row with its state. Left out, hence in nobody's
    favour: ids, the index, and all scratch.
    """
    row = (4 if case.dtype == "float32" else 2) * case.dim
    outputs = case.num_ids // case.bag * row
    lookup = unique_rows * row + outputs
    if op == "eval":
        return lookup
    return lookup + outputs + 2 * unique_rows * (row + state_bytes(case))


@functools.cache
def _drawn(draw: Draw) -> tuple[list[list[np.ndarray]], float]:
    def one(place: tuple[int, int]) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng([SEED, *place])  # a stream of its own: drawn in parallel
        ids = shapes.draw(rng, draw.skew, draw.ids, draw.vocabulary).astype(np.int32)
        return ids, int(np.count_nonzero(np.diff(np.sort(ids)))) + 1

    places = [(batch, table) for batch in range(draw.batches) for table in range(draw.tables)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(one, places))
    batches = [
        [ids for ids, _ in done[b * draw.tables : (b + 1) * draw.tables]]
        for b in range(draw.batches)
    ]
    unique = [
        sum(count for _, count in done[b * draw.tables : (b + 1) * draw.tables])
        for b in range(draw.batches)
    ]
    return batches, statistics.mean(unique)


def unique_rows(draw: Draw) -> float:
    """Returns the mean number of unique rows of a batch, all tables."""
    return _drawn(draw)[1]


@functools.cache
def ids_on_device(draw: Draw) -> list[list[jax.Array]]:
    """Returns the batches, per batch and table int32[ids], on the device."""
    return jax.device_put(_drawn(draw)[0])


@functools.cache
def keys_on_device(draw: Draw) -> list[list[dj.Keys]]:
    """Returns the same batches as 64-bit keys."""
    return [spread(draw.tables, batch) for batch in ids_on_device(draw)]


@functools.partial(jax.jit, static_argnums=0)
def _spread(tables: int, ids: list[jax.Array]) -> list[jax.Array]:
    return [_splitmix64(x.astype(jnp.uint64) * tables + t) for t, x in enumerate(ids)]


def _splitmix64(x: jax.Array) -> jax.Array:
    """shapes.spread, as pairs of uint32, low word first."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return jnp.stack([z, z >> np.uint64(32)], -1).astype(jnp.uint32)


def spread(tables: int, ids: list[jax.Array]) -> list[dj.Keys]:
    """Returns the keys of the ids of each table: spread over all 64 bits, on the device."""
    with jax.enable_x64(True):
        return [dj.Keys(pairs) for pairs in _spread(tables, ids)]


def forget_draws() -> None:
    """Frees the batches of all draws."""
    for cache in (_drawn, ids_on_device, keys_on_device):
        cache.cache_clear()
