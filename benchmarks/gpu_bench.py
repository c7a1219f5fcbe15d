"""Dynamic tables against XLA's fixed table on a GPU, side by side in one process.

    python benchmarks/gpu_bench.py --out DIR [--quick]

Whole steps run through ``jax.jit`` with donation: lookup, given gradient, apply_gradients. "step"
is the median of synchronised steps, "piped" the time of 30 steps without synchronisation, over
30. The floor counts each byte that has to move once, at the copy rate measured in the same run.
"""

import argparse
import csv
import datetime
import functools
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shapes

import dynemb_jax as dj

FIELDS = [
    "date", "commit", "device", "jax", "case", "variant", "tables", "n", "dim", "keys_per_table",
    "skew", "optimizer", "unique_rows", "step_ms", "piped_ms", "floor_ms", "repeats",
]  # fmt: skip
PIPED = 30


def timed(run: Callable[[int], Any], repeats: int) -> tuple[float, float]:
    """Median of synchronised calls and mean of piped ones, in ms; run(i) returns arrays."""
    for i in range(24):
        result = run(i)
    jax.block_until_ready(result)
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(i))
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    for i in range(PIPED):
        result = run(i)
    jax.block_until_ready(result)
    return statistics.median(times) * 1e3, (time.perf_counter() - start) / PIPED * 1e3


def copy_rate() -> float:
    """Bytes a second, read and written, of a large device copy."""
    x = jnp.ones(1 << 29, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    step, _ = timed(lambda _: copy(x), 10)
    return 2 * x.nbytes / step * 1e3


class Tables:
    """Dynamic tables filled with the keys of a shape."""

    def __init__(self, count: int, keys: int, dim: int, optimizer: Any, filled: float):
        configs = [dj.TableConfig(f"t{i}", dim, optimizer=optimizer) for i in range(count)]
        self.emb = dj.create([dj.FeatureConfig(c) for c in configs])
        self.fill(int(keys * filled), count)

    def fill(self, keys: int, count: int) -> None:
        insert = jax.jit(lambda emb, ids: dj.lookup(emb, ids)[1], donate_argnums=0)
        chunk = max(1, (1 << 21) // count)
        for first in range(0, keys, chunk):
            ids = np.arange(first, first + chunk) % keys  # one shape: one program
            keys_of = [dj.keys(shapes.spread(ids * count + t)) for t in range(count)]
            self.emb = insert(self.emb, keys_of)
        jax.block_until_ready(self.emb)


@functools.partial(jax.jit, donate_argnums=0)
def train(emb, ids, grads):
    acts, emb = dj.lookup(emb, ids)
    return dj.apply_gradients(emb, acts, grads), acts.rows


@jax.jit
def evaluate(emb, ids):
    acts, emb = dj.lookup(emb, ids, train=False)
    return acts.rows


@functools.partial(jax.jit, donate_argnums=0)
def xla_train(table, ids, grads):
    rows = jnp.take(table, ids, axis=0)
    return table.at[ids].add(-0.01 * grads), rows


xla_take = jax.jit(lambda table, ids: jnp.take(table, ids, axis=0))

OPTIMIZERS = {
    "sgd": (dj.optimizers.sgd(0.01), 0),
    "adagrad": (dj.optimizers.adagrad(0.01), 1),
    "adam": (dj.optimizers.adam(0.01), 2),
}


def batches(tables: int, n: int, keys: int, skew: str, count: int = 24) -> Iterator[list[Any]]:
    rng = np.random.default_rng(42)
    for _ in range(count):
        yield [shapes.draw(rng, skew, n, keys) for _ in range(tables)]


def bench(case, tables, n, keys, dim, skew, optimizer, filled, rate, repeats) -> Iterator[dict]:
    rule, vectors = OPTIMIZERS[optimizer]
    drawn = list(batches(tables, n, keys, skew, 24 if tables * n > 10_000 else 4))
    unique = statistics.mean(sum(len(np.unique(t)) for t in batch) for batch in drawn)
    ids = [
        jax.device_put([dj.keys(shapes.spread(t * tables + i)) for i, t in enumerate(batch)])
        for batch in drawn
    ]
    grads = [jax.random.normal(jax.random.key(i), (n, dim)) for i in range(tables)]
    common = {
        "case": case, "tables": tables, "n": n * tables, "dim": dim, "keys_per_table": keys,
        "skew": skew, "unique_rows": int(unique), "repeats": repeats,
    }  # fmt: skip
    row = 4 * dim
    gather = n * tables * row + unique * row
    state = Tables(tables, keys, dim, rule, filled)

    def step(i):
        state.emb, rows = train(state.emb, ids[i % len(ids)], grads)
        return state.emb, rows

    update = n * tables * row + 2 * unique * row * (1 + vectors)
    times = timed(step, repeats)
    yield common | result("train", optimizer, times, (gather + update) / rate * 1e3)
    if optimizer == "sgd":
        times = timed(lambda i: evaluate(state.emb, ids[i % len(ids)]), repeats)
        yield common | result("eval", "", times, gather / rate * 1e3)
    waits = dj.stats(state.emb)["t0"].waits
    print("waits", waits, flush=True)
    dj.close(state.emb)
    if optimizer != "sgd" or tables > 1:
        return
    fixed = {"table": jnp.zeros((keys, dim))}
    indices = [jax.device_put(t[0].astype(np.int32)) for t in drawn]

    def xla_step(i):
        fixed["table"], rows = xla_train(fixed["table"], indices[i % len(ids)], grads[0])
        return fixed["table"], rows

    times = timed(xla_step, repeats)
    yield common | result("train", optimizer, times, (gather + update) / rate * 1e3, "xla")
    times = timed(lambda i: xla_take(fixed["table"], indices[i % len(ids)]), repeats)
    yield common | result("eval", "", times, gather / rate * 1e3, "xla")


def result(kind, optimizer, times, floor, variant="dynemb") -> dict:
    return {
        "variant": f"{variant}-{kind}",
        "optimizer": optimizer,
        "step_ms": round(times[0], 4),
        "piped_ms": round(times[1], 4),
        "floor_ms": round(floor, 4),
    }


def commit() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def plot(path: pathlib.Path) -> None:
    """Draws piped times of a CSV as bars beside it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with path.open() as file:
        lines = list(csv.DictReader(file))
    labels = [
        f"{x['case']}\n{x['skew']} D {x['dim']}\n{x['variant'].split('-')[1]} {x['optimizer']}"
        for x in lines
    ]
    colors = ["tab:blue" if x["variant"].startswith("dynemb") else "tab:orange" for x in lines]
    values = [float(x["piped_ms"]) for x in lines]
    figure, axes = plt.subplots(figsize=(16, 5), layout="constrained")
    bars = axes.bar(range(len(lines)), values, color=colors)
    axes.bar_label(bars, [f"{v:.2f}" for v in values], fontsize=8)
    axes.set_xticks(range(len(lines)), labels, fontsize=7)
    axes.set_ylabel("piped, ms (less is better)")
    first = lines[0]
    axes.set_title(
        f"{first['device']}, jax {first['jax']}, commit {first['commit']}: dynemb_jax (blue), "
        "XLA's fixed table (orange)"
    )
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--plot", action="store_true", help="only draw the CSV that is there")
    parser.add_argument("--commit", default=None, help="where the sources are not a checkout")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.plot:
        plot(args.out / "step.csv")
        return
    million, repeats = (1 << 16, 5) if args.quick else (1 << 20, 30)
    small, large = (100_000, 1 << 18) if args.quick else (1_677_721, 1 << 24)
    rate = copy_rate()
    print(f"copy {rate / 1e12:.2f} TB/s", flush=True)
    zipf = "zipf1.05"
    plan = [
        ("ten_tables", 10, million // 10, small, 128, zipf, "sgd", 0.95),
        ("ten_tables", 10, million // 10, small, 128, zipf, "adam", 0.95),
        ("single", 1, million, large, 128, zipf, "sgd", 1.0),
        ("single", 1, million, large, 128, zipf, "adam", 1.0),
        ("single", 1, million, large, 64, zipf, "sgd", 1.0),
        ("single", 1, million, large, 128, "uniform", "sgd", 1.0),
        ("single", 1, million, large, 128, "uniform", "adam", 1.0),
        ("small_batch", 1, 1024, small, 128, zipf, "sgd", 1.0),
    ]
    lines = []
    stamp = {
        "date": datetime.date.today().isoformat(),
        "commit": args.commit or commit(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    for case in plan:
        for line in bench(*case, rate, repeats):
            lines.append(stamp | line)
            print(
                f"{line['case']:11} {line['variant']:13} {line['optimizer']:8} {line['skew']:8} "
                f"D {line['dim']:4}  step {line['step_ms']:8.3f}  piped {line['piped_ms']:8.3f}  "
                f"floor {line['floor_ms']:7.3f} ms",
                flush=True,
            )
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "step.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
