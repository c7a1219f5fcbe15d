"""Dynamic tables against XLA's fixed table, side by side in one process on the CPU.

    python benchmarks/cpu_bench.py            # minutes on two cores, about 6 GiB
    python benchmarks/cpu_bench.py --quick    # seconds: says only that everything runs

Cases (benchmarks/README.md says how each is timed):
    train   lookup, given gradient, SGD      xla: jnp.take and table.at[ids].add
    find    lookup of known keys             xla: jnp.take
    insert  all keys into an empty table     xla: drawing a table of that size at once
    double  the call that doubles the index  xla: concatenating as many zeros
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import memory
import numpy as np
import report
import shapes

import dynemb_jax as dj

LEARNING_RATE = 0.01
SKEWS = ("uniform", "zipf1.05")
BATCHES = 4  # distinct ones, used in turn, so that none is served from the cache
WARMUP = 2
GROWTH_BATCH = 4096  # small, so that a call that grows stands out from those that do not


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one run."""

    num_ids: int
    dim: int
    num_keys: int
    repeats: int
    fills: int


@dataclasses.dataclass(frozen=True)
class Growth:
    """One line of growth.csv: a call that enlarged the index, and the memory of the fill."""

    rows: int
    dim: int
    capacity_before: int
    capacity_after: int
    growing_ms: float
    ordinary_ms: float
    rows_copied: int
    peak_mib: float
    final_mib: float


FULL = Shape(num_ids=1_048_576, dim=64, num_keys=4_194_304, repeats=15, fills=3)
QUICK = Shape(num_ids=16_384, dim=64, num_keys=65_536, repeats=3, fills=1)


def new_table(dim: int) -> dj.Embeddings:
    """Returns an empty table; SGD, because the XLA baseline has no state to keep either."""
    config = dj.TableConfig("items", dim=dim, optimizer=dj.optimizers.sgd(LEARNING_RATE))
    return dj.create(dj.FeatureConfig(config), seed=0)


def all_keys(shape: Shape, num_ids: int) -> list[dj.Keys]:
    """Returns every key of the table once, in batches, in random order."""
    ids = np.random.default_rng(7).permutation(shape.num_keys)
    return [dj.keys(shapes.spread(part)) for part in ids.reshape(-1, num_ids)]


@functools.partial(jax.jit, donate_argnames=("emb",))
def insert_step(emb: dj.Embeddings, keys: dj.Keys) -> dj.Embeddings:
    """Finds or inserts; the rows are not asked for."""
    _, emb = dj.lookup(emb, keys)
    return emb


def fill(emb: dj.Embeddings, batches: list[dj.Keys]) -> tuple[dj.Embeddings, list[float]]:
    """Inserts all batches; returns the seconds of each, compilation excluded."""
    step = insert_step.lower(emb, batches[0]).compile()
    times = []
    for keys in batches:

        def run(keys: dj.Keys = keys) -> dj.Embeddings:
            nonlocal emb
            emb = step(emb, keys)
            return emb

        times.append(report.seconds(run))
    return emb, times


def alternate(variants: dict[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Times the variants in turn, so that a slow moment of the machine hits both."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(WARMUP + repeats):
        for name, run in variants.items():
            taken = report.seconds(lambda run=run, repeat=repeat: run(repeat % BATCHES))
            if repeat >= WARMUP:
                times[name].append(taken)
    return times


def measure_steps(shape: Shape) -> Iterator[report.Result]:
    """Times train and find, both skews, on one filled table each."""
    emb, _ = fill(new_table(shape.dim), all_keys(shape, shape.num_ids))
    table = jnp.zeros((shape.num_keys, shape.dim))
    rng = np.random.default_rng(42)
    grads = jnp.asarray(rng.normal(0, 1e-3, (shape.num_ids, shape.dim)), jnp.float32)

    # Both return the rows: a model reads them, and XLA would otherwise drop its take.
    @functools.partial(jax.jit, donate_argnames=("emb",))
    def our_train(emb: dj.Embeddings, keys: dj.Keys, grads: jax.Array):
        acts, emb = dj.lookup(emb, keys)
        return dj.apply_gradients(emb, acts, grads), acts.rows

    @functools.partial(jax.jit, donate_argnames=("table",))
    def xla_train(table: jax.Array, ids: jax.Array, grads: jax.Array):
        rows = jnp.take(table, ids, axis=0)
        return table.at[ids].add(-LEARNING_RATE * grads), rows

    @functools.partial(jax.jit, donate_argnames=("emb",))
    def our_find(emb: dj.Embeddings, keys: dj.Keys):
        acts, emb = dj.lookup(emb, keys, train=False)
        return emb, acts.rows

    @jax.jit
    def xla_find(table: jax.Array, ids: jax.Array):
        return jnp.take(table, ids, axis=0)

    for skew in SKEWS:
        drawn = [shapes.draw(rng, skew, shape.num_ids, shape.num_keys) for _ in range(BATCHES)]
        ids = [jnp.asarray(batch, jnp.int32) for batch in drawn]
        keys = [dj.keys(shapes.spread(batch)) for batch in drawn]

        def train_ours(batch: int, keys: list[dj.Keys] = keys) -> object:
            nonlocal emb
            emb, rows = our_train(emb, keys[batch], grads)
            return emb, rows

        def train_xla(batch: int, ids: list[jax.Array] = ids) -> object:
            nonlocal table
            table, rows = xla_train(table, ids[batch], grads)
            return table, rows

        def find_ours(batch: int, keys: list[dj.Keys] = keys) -> object:
            nonlocal emb
            emb, rows = our_find(emb, keys[batch])
            return emb, rows

        def find_xla(batch: int, ids: list[jax.Array] = ids) -> object:
            return xla_find(table, ids[batch])

        facts = (shape.num_ids, shape.dim, shape.num_keys, skew)
        train = alternate({"ours": train_ours, "xla": train_xla}, shape.repeats)
        find = alternate({"ours": find_ours, "xla": find_xla}, shape.repeats)
        for case, times in (("train", train), ("find", find)):
            for variant in times:
                yield report.result(case, variant, facts, times[variant], "M ids/s")
    dj.close(emb)


def measure_insert(shape: Shape) -> Iterator[report.Result]:
    """Times filling an empty table, growth and first values included."""
    batches = all_keys(shape, shape.num_ids)
    draw = jax.jit(functools.partial(jax.random.uniform, shape=(shape.num_keys, shape.dim)))
    jax.block_until_ready(draw(jax.random.key(0)))
    ours, xla = [], []
    for repeat in range(shape.fills):
        emb, times = fill(new_table(shape.dim), batches)
        dj.close(emb)
        ours.append(sum(times))
        xla.append(report.seconds(lambda repeat=repeat: draw(jax.random.key(repeat))))
    facts = (shape.num_keys, shape.dim, shape.num_keys, "distinct")
    yield report.result("insert", "ours", facts, ours, "M keys/s")
    yield report.result("insert", "xla", facts, xla, "M keys/s")


def fill_slowly(shape: Shape) -> list[Growth]:
    """Fills a table in small batches; returns every growth of its index."""
    batches = all_keys(shape, GROWTH_BATCH)
    jax.clear_caches()
    before = memory.resident_mib()
    memory.reset_peak()
    emb = new_table(shape.dim)
    step = insert_step.lower(emb, batches[0]).compile()
    seen, ordinary, grown = dj.stats(emb)["items"], [], []
    for keys in batches:

        def run(keys: dj.Keys = keys) -> dj.Embeddings:
            nonlocal emb
            emb = step(emb, keys)
            return emb

        taken = report.seconds(run) * 1e3
        now = dj.stats(emb)["items"]
        if now.growths > seen.growths:
            grown.append((now.rows, seen.capacity, now.capacity, taken, now.rows_copied))
        else:
            ordinary.append(taken)
        seen = now
    peak, final = memory.peak_mib() - before, memory.resident_mib() - before
    dj.close(emb)
    usual = round(statistics.median(ordinary), 3)
    return [
        Growth(rows, shape.dim, old, new, round(taken, 3), usual, copied, round(peak), round(final))
        for rows, old, new, taken, copied in grown
    ]


def measure_double(shape: Shape) -> tuple[list[report.Result], list[Growth]]:
    """Times the largest growth of the index, and XLA's way to twice as many rows."""
    fills = [fill_slowly(shape) for _ in range(shape.fills)]
    rows = fills[0][-1].rows
    table = jnp.zeros((rows, shape.dim))

    @jax.jit
    def enlarge(table: jax.Array) -> jax.Array:
        return jnp.concatenate([table, jnp.zeros_like(table)])

    jax.block_until_ready(enlarge(table))
    xla = [report.seconds(lambda: enlarge(table)) for _ in range(shape.fills)]
    ours = [growths[-1].growing_ms / 1e3 for growths in fills]
    facts = (GROWTH_BATCH, shape.dim, rows, "distinct")
    lines = [
        report.result("double", "ours", facts, ours, "calls/s"),
        report.result("double", "xla", facts, xla, "calls/s"),
    ]
    return lines, fills[0]


def main() -> None:
    """Runs every case and writes the results."""
    parser = argparse.ArgumentParser(description="Dynamic tables against XLA's fixed table.")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke test")
    parser.add_argument("--out", type=pathlib.Path, help="folder of step.csv, growth.csv, step.png")
    args = parser.parse_args()
    shape = QUICK if args.quick else FULL
    here = pathlib.Path(__file__).parent
    out = args.out or (here.parent / "build/bench" if args.quick else here / "results/cpu")

    # First, because the memory figures want a process that holds nothing else.
    double, growths = measure_double(shape)
    results = [*measure_steps(shape), *measure_insert(shape), *double]
    report.print_table(results)
    for growth in growths:
        print(growth)
    report.write_csv(out / "step.csv", results)
    report.write_csv(out / "growth.csv", growths)
    facts = report.provenance()
    report.plot(
        out / "step.png",
        results,
        f"{shape.num_ids:,} ids, D = {shape.dim} fp32, {shape.num_keys:,} keys\n"
        f"{facts['host_cpu']}, {facts['cores']} cores, jax {facts['jax']}",
    )
    print(f"written: {out}")


if __name__ == "__main__":
    main()
