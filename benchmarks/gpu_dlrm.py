"""Tables of a large ranking model: 26 of very different sizes, bags of 1 to 100 ids.

Rows and ids a bag are those of MLPerf's DLRM-DCNv2, with a quarter of its rows; ids are drawn
from a power law, since the data itself is not at hand. 214 ids a sample, one pooled row a table.
"""

import functools
from typing import Any

import gpu_cases
import gpu_dynemb
import gpu_report
import gpu_timing
import gpu_xla
import jax
import jax.numpy as jnp
import numpy as np
import shapes

import dynemb_jax as dj

CASE = "dlrm"
DIM = 128
OPTIMIZER = "rowwise_adagrad"
ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956,
    405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152,
    12_973, 108, 36,
)  # fmt: skip
HOTNESS = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1
)  # fmt: skip
BATCHES = 8


class Shape:
    """Sizes of a run, and its batches: per table int32[samples, hotness]."""

    def __init__(self, scale: gpu_cases.Scale):
        full = scale == gpu_cases.FULL
        self.samples = 16_384 if full else 256
        self.rows = [max(1, rows // (4 if full else 4_000)) for rows in ROWS]
        self.num_ids = self.samples * sum(HOTNESS)
        self.unique_rows = 0.0
        self.batches: list[list[np.ndarray]] = []
        for batch in range(BATCHES):
            drawn = []
            for table, (rows, bag) in enumerate(zip(self.rows, HOTNESS, strict=True)):
                rng = np.random.default_rng([gpu_cases.SEED, batch, table])
                ids = shapes.draw(rng, gpu_cases.ZIPF, self.samples * bag, rows)
                self.unique_rows += len(np.unique(ids)) / BATCHES
                drawn.append(ids.astype(np.int32).reshape(self.samples, bag))
            self.batches.append(drawn)

    def floor_bytes(self) -> float:
        """As gpu_cases.floor_bytes: rows read, pooled rows out and in, rows and state updated."""
        row = 4 * DIM
        outputs = 2 * self.samples * len(ROWS) * row
        return self.unique_rows * row + outputs + 2 * self.unique_rows * (row + 4)


class Dynemb:
    """Dynamic tables that hold all ids."""

    name = "dynemb"

    def __init__(self, shape: Shape, grads: list[jax.Array]):
        self.grads = grads
        features = [
            dj.FeatureConfig(
                dj.TableConfig(
                    f"t{i}",
                    DIM,
                    optimizer=gpu_cases.optimizer(OPTIMIZER),
                    initializer=dj.initializers.constant(),
                    initial_rows=rows,
                ),
                "sum",
            )
            for i, rows in enumerate(shape.rows)
        ]
        self.emb = dj.create(features)
        for first in range(0, max(shape.rows), gpu_dynemb.FILL_IDS // 8):
            chunk = jnp.arange(gpu_dynemb.FILL_IDS // 8, dtype=jnp.int32) + first
            ids = [jnp.minimum(chunk, rows - 1) for rows in shape.rows]
            keys = gpu_cases.spread(len(ids), ids)
            self.emb = gpu_dynemb.insert(self.emb, [one.reshape(-1, 1) for one in keys])
        self.batches = [
            gpu_cases.spread(len(batch), [jnp.asarray(ids) for ids in batch])
            for batch in shape.batches
        ]
        jax.block_until_ready(self.emb)

    def train(self, i: int) -> Any:
        """Step number i; returns the pooled rows."""
        batch = self.batches[i % BATCHES]
        self.emb, rows = gpu_dynemb.train(self.emb, batch, self.grads)
        return rows

    def close(self) -> None:
        """Frees the tables."""
        dj.close(self.emb)


class Xla:
    """Fixed tables, indexed directly."""

    name = "xla"

    def __init__(self, shape: Shape, grads: list[jax.Array]):
        self.grads = grads
        self.tables = [
            {"a": jnp.zeros((rows,)), "w": jnp.zeros((rows, DIM))} for rows in shape.rows
        ]
        self.batches = jax.device_put(shape.batches)
        self._train = jax.jit(self._step, donate_argnums=0)

    @staticmethod
    def _step(tables: Any, batch: Any, grads: Any) -> tuple[Any, Any]:
        pooled, moved = [], []
        for table, ids, grad in zip(tables, batch, grads, strict=True):
            pooled.append(jnp.take(table["w"], ids, axis=0, mode="clip").sum(1))
            share = jnp.repeat(grad, ids.shape[1], axis=0)
            moved.append(gpu_xla.RULES[OPTIMIZER](table, ids.reshape(-1), share))
        return moved, pooled

    def train(self, i: int) -> Any:
        """Step number i; returns the pooled rows."""
        self.tables, rows = self._train(self.tables, self.batches[i % BATCHES], self.grads)
        return rows

    def close(self) -> None:
        """Frees the tables."""
        for array in jax.tree.leaves(self.tables):
            array.delete()


def measure(run: Any) -> None:
    """Times both in turn, compares their rows, and adds a line for each to the run."""
    shape = Shape(run.scale)
    grad = functools.partial(jax.random.normal, shape=(shape.samples, DIM))
    grads = [grad(jax.random.key(i)) * 1e-2 for i in range(len(ROWS))]
    variants = [one(shape, grads) for one in (Dynemb, Xla)]
    runs = {one.name: one.train for one in variants}
    gpu_timing.warm_up(runs, BATCHES)
    times, last = gpu_timing.in_turn(runs, run.scale, BATCHES, run.scale.piped)
    for name, taken in times.items():
        line = {
            "case": CASE, "variant": name, "op": "train", "tables": len(ROWS),
            "n": shape.num_ids, "dim": DIM, "keys_per_table": max(shape.rows),
            "skew": gpu_cases.ZIPF, "optimizer": OPTIMIZER, "dtype": "float32",
            "unique_rows": round(shape.unique_rows), "timing": "jit",
            "bytes_floor": shape.floor_bytes(),
        } | taken.columns()  # fmt: skip
        run.add(run.stamp | gpu_report.finished(line, run.copy_rate))
    apart = gpu_timing.disagreement(last["dynemb"], last["xla"])
    print(f"    rows apart by {apart:.1e}", flush=True)
    if not apart <= gpu_timing.DISAGREEMENT:
        run.failures.append(f"{CASE}: rows differ by {apart:.1e}")
    for one in variants:
        one.close()
