"""Dynamic tables against XLA's fixed tables on a GPU, and the hash table alone.

    python benchmarks/gpu_bench.py --out DIR [--commit ID] [--quick] [--only CASE,CASE]
        [--native PATH]
    python benchmarks/gpu_bench.py --out DIR --plot     # draws the CSVs that are there

Writes DIR/step.csv, bounded.csv and collections.csv (whole steps through jax.jit), DIR/index.csv
(the native benchmark, if PATH names it) and DIR/growth.csv. benchmarks/README.md says how
everything is timed and counted.
"""

import argparse
import contextlib
import dataclasses
import gc
import pathlib
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import gpu_bounded
import gpu_cases
import gpu_dlrm
import gpu_driver
import gpu_dynemb
import gpu_growth
import gpu_native
import gpu_report
import gpu_timing
import gpu_xla
import jax
import numpy as np


class Run:
    """Options, and what has been measured so far."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.scale = gpu_cases.QUICK if args.quick else gpu_cases.FULL
        self.only = set(args.only.split(",")) if args.only else None
        self.failures: list[str] = []
        self.steps: list[gpu_report.Row] = []
        self.growth: list[gpu_growth.Growth] = []
        self.driver: gpu_driver.Driver | None = None
        self.copy_rate = 0.0
        self.stamp: gpu_report.Row = {}

    def wants(self, case: str) -> bool:
        """Whether the case was asked for."""
        return self.only is None or case in self.only

    @contextlib.contextmanager
    def going_on(self, what: str) -> Iterator[None]:
        """A case that fails is reported, and the run goes on; it will exit with 1."""
        try:
            yield
        except Exception:
            traceback.print_exc()
            self.failures.append(what)

    def add(self, line: gpu_report.Row) -> None:
        """Keeps and prints a line."""
        self.steps.append(line)
        print(gpu_report.text(line), flush=True)


def create_variants(case: gpu_cases.Case, run: Run) -> list[Any]:
    """Returns the variants that fit into memory, each after its first step."""
    shape = (case.draw.ids // case.bag, case.dim)
    grads = [
        (jax.random.normal(jax.random.key(table), shape) * 1e-2).astype(case.dtype)
        for table in range(case.draw.tables)
    ]
    made = []
    beside = [gpu_xla.XlaVariant] if case.has_baseline else []
    beside += [gpu_dynemb.DeterministicVariant] if case.has_deterministic else []
    for variant in (gpu_dynemb.DynembVariant, *beside):
        with run.going_on(f"{case.label}: {variant.name}"):
            one = variant(case, grads)
            jax.block_until_ready(one.train(0))
            made.append(one)
            if isinstance(one, gpu_xla.XlaVariant) and (copies := one.table_copies()):
                print(f"    note: XLA's step copies {copies} whole tables", flush=True)
    return made


def measure_op(case: gpu_cases.Case, op: str, variants: list[Any], run: Run) -> None:
    """Times one operation with the variants in turn, and compares their rows."""
    ours = {v.name: v for v in variants if isinstance(v, gpu_dynemb.DynembVariant)}
    runs = {v.name: v.train if op == "train" else v.evaluate for v in variants}
    # A step of few ids is over in no time; the clock wants more of them.
    piped = run.scale.piped * (10 if case.num_ids < 10_000 else 1)
    gpu_timing.warm_up(runs, case.draw.batches)
    before = {name: one.facts() for name, one in ours.items()}
    times, last = gpu_timing.in_turn(runs, run.scale, case.draw.batches, piped)
    after = {name: one.facts() for name, one in ours.items()}
    unique = gpu_cases.unique_rows(case.draw)
    for name, taken in times.items():
        line = {
            "case": case.name, "variant": name, "op": op, "tables": case.draw.tables,
            "n": case.num_ids, "dim": case.dim, "keys_per_table": case.draw.vocabulary,
            "skew": case.draw.skew, "optimizer": case.optimizer, "dtype": case.dtype,
            "unique_rows": round(unique), "timing": "jit",
            "bytes_floor": gpu_cases.floor_bytes(case, unique, op),
        } | taken.columns()  # fmt: skip
        if name in ours:
            load = after[name]["rows"] / after[name]["capacity"]
            line |= {"load": load, "hit_rate": hits(before[name], after[name])}
        run.add(run.stamp | gpu_report.finished(line, run.copy_rate))
    for name in last.keys() - {"dynemb"} if "dynemb" in last else ():
        apart = gpu_timing.disagreement(last["dynemb"], last[name])
        waits = after["dynemb"]["waits"] - before["dynemb"]["waits"]
        print(
            f"    rows apart from {name}'s by {apart:.1e}; the host waited {waits} times for room",
            flush=True,
        )
        if not apart <= gpu_timing.DISAGREEMENT:
            run.failures.append(f"{case.label} {op}: {name}'s rows differ by {apart:.1e}")


def measure_case(case: gpu_cases.Case, run: Run) -> None:
    """Times train, and eval where asked; leaves no memory behind."""
    variants = create_variants(case, run)
    try:
        for op in ("train", "eval") if case.evaluates else ("train",):
            if variants:
                measure_op(case, op, variants, run)
    finally:
        for variant in variants:
            variant.close()
        del variants
        gc.collect()


def hits(before: dict[str, int], after: dict[str, int]) -> float:
    """Share of the ids looked up between two counts whose key was there."""
    asked = {x: after[x] - before[x] for x in ("ids", "hits", "found", "missing")}
    return (asked["hits"] + asked["found"]) / (asked["ids"] + asked["found"] + asked["missing"])


def measure_copy(run: Run, native: list[dict[str, Any]]) -> None:
    """Finds the rate that floors are divided by."""
    run.copy_rate = gpu_native.copy_rate(native) or 0.0
    if jax.default_backend() == "gpu":
        with run.going_on("copy rate by the driver"):
            run.driver = gpu_driver.Driver()
            run.copy_rate = run.driver.copy_rate()
    if not run.copy_rate:
        # No card: only so that the columns have values.
        x = np.ones(1 << 26, np.float32)
        y = np.zeros_like(x)
        np.copyto(y, x)
        run.copy_rate = 2 * x.nbytes / gpu_timing.wall_ms(lambda: np.copyto(y, x)) * 1e3
    print(f"copy on the device: {run.copy_rate / 1e12:.3f} TB/s", flush=True)


def summarise(run: Run, index: list[gpu_report.Row]) -> None:
    """Prints every line again, with the targets, and what has failed."""
    print(
        "\nG/s: 10**9 ids a second, of piped steps where there are any. Floor: bytes / copy rate."
    )
    for line in [*run.steps, *index]:
        print(gpu_report.text(line, goals=not run.args.quick))
    if not run.args.quick and run.growth and (ratio := gpu_growth.peak_over_final(run.growth)):
        wanted = gpu_report.MUST_PEAK_OVER_FINAL
        verdict = "ok" if ratio <= wanted else "MISSED"
        print(f"growth: peak / final memory {ratio:.3f}  must {wanted:g} {verdict}")
    for what in run.failures:
        print(f"FAILED: {what}")


def measure(args: argparse.Namespace) -> int:
    """Runs the cases asked for; returns the exit status."""
    started = time.perf_counter()
    run = Run(args)
    native: list[dict[str, Any]] = []
    if args.native and any(run.wants(case) for case in gpu_native.CASES):
        with run.going_on("native benchmark"):  # before JAX takes its share of the card
            native, failure = gpu_native.lines(args.native, args.quick)
            run.failures.extend([failure] if failure else [])
    run.stamp = gpu_report.provenance(args.commit)
    measure_copy(run, native)
    index = [run.stamp | gpu_report.finished(x, run.copy_rate) for x in native]
    for line in index:
        print(gpu_report.text(line), flush=True)
    previous = None
    for case in gpu_cases.cases(run.scale):
        if not run.wants(case.name):
            continue
        if previous and previous.draw != case.draw:
            gpu_cases.forget_draws()
        previous = case
        with run.going_on(case.label):
            measure_case(case, run)
    if run.wants(gpu_bounded.CASE):
        with run.going_on(gpu_bounded.CASE):
            gpu_bounded.measure(run)
    gpu_cases.forget_draws()
    if run.wants(gpu_dlrm.CASE):
        with run.going_on(gpu_dlrm.CASE):
            gpu_dlrm.measure(run)
    if run.wants("growth"):
        with run.going_on("growth"):
            run.growth = gpu_growth.measure(run.scale, run.driver)
    files = {
        gpu_bounded.CASE: "bounded",
        gpu_dlrm.CASE: "collections",
        "many_tables": "collections",
        "sequences": "collections",
    }
    for name in ("step", "bounded", "collections", "index"):
        lines = [line for line in run.steps if files.get(line["case"], "step") == name]
        if lines := index if name == "index" else lines:
            gpu_report.write(args.out / f"{name}.csv", gpu_report.FIELDS, lines)
    if run.growth:
        fields = [*run.stamp, *(f.name for f in dataclasses.fields(gpu_growth.Growth))]
        lines = [run.stamp | dataclasses.asdict(line) for line in run.growth]
        gpu_report.write(args.out / "growth.csv", fields, lines)
    summarise(run, index)
    print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if run.failures else 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the CSVs")
    parser.add_argument("--commit", help="where the sources are not a checkout")
    parser.add_argument("--quick", action="store_true", help="small sizes: only that it runs")
    names = dict.fromkeys(case.name for case in gpu_cases.cases(gpu_cases.FULL))
    choices = [*names, gpu_bounded.CASE, gpu_dlrm.CASE, "growth", *gpu_native.CASES]
    parser.add_argument("--only", metavar="CASE,CASE", help=", ".join(choices))
    parser.add_argument("--native", type=pathlib.Path, help="dynemb_index_bench, or its output.csv")
    parser.add_argument("--plot", action="store_true", help="only draw the CSVs that are there")
    args = parser.parse_args()
    unknown = set((args.only or choices[0]).split(",")) - set(choices)
    if unknown:
        parser.error(f"--only knows {', '.join(choices)}; got {', '.join(sorted(unknown))}")
    if args.plot:
        import gpu_plots

        gpu_plots.draw(args.out)
        return 0
    return measure(args)


if __name__ == "__main__":
    sys.exit(main())
