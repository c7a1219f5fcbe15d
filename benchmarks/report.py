"""How benchmarks measure and write: one CSV schema, one kind of plot."""

import csv
import dataclasses
import datetime
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the CSV: what was timed, and how long it took."""

    case: str
    variant: str
    n: int
    dim: int
    keys_total: int
    skew: str
    median_ms: float
    min_ms: float
    rate: float
    unit: str
    repeats: int


def seconds(run: Callable[[], object]) -> float:
    """Returns the wall time of one call, its JAX results included."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def result(
    case: str, variant: str, shape: tuple[int, int, int, str], times: Sequence[float], unit: str
) -> Result:
    """Returns the line of one timing; shape is (n, dim, keys_total, skew), rate n per median."""
    n, dim, keys_total, skew = shape
    median = statistics.median(times)
    scale = {"M ids/s": 1e-6, "M keys/s": 1e-6, "calls/s": 1.0 / n}[unit]
    return Result(
        case=case,
        variant=variant,
        n=n,
        dim=dim,
        keys_total=keys_total,
        skew=skew,
        median_ms=round(median * 1e3, 3),
        min_ms=round(min(times) * 1e3, 3),
        rate=round(n / median * scale, 3),
        unit=unit,
        repeats=len(times),
    )


def provenance() -> dict[str, str | int]:
    """Returns what a reader needs to repeat the run; no names of machines or people."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "host_cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
    }


def write_csv(path: pathlib.Path, lines: Sequence["DataclassInstance"]) -> None:
    """Writes the file anew: one run, one commit, one machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [provenance() | dataclasses.asdict(line) for line in lines]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_table(results: Sequence[Result]) -> None:
    """Prints the same figures for people."""
    for line in results:
        name = f"{line.case} {line.skew} {line.variant}"
        rate = f"{line.rate:,.4g} {line.unit}"
        timing = f"{line.median_ms:>10,.2f} ms (min {line.min_ms:,.2f})"
        print(f"{name:<40} {timing:<32} {rate}", flush=True)


def plot(path: pathlib.Path, results: Sequence[Result], title: str) -> None:
    """Draws one group of bars a case, one bar a variant; the value stands on the bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cases = list(dict.fromkeys((line.case, line.skew) for line in results))
    variants = list(dict.fromkeys(line.variant for line in results))
    figure, axes = plt.subplots(figsize=(1.6 + 1.7 * len(cases), 4.2), layout="constrained")
    width = 0.8 / len(variants)
    for place, variant in enumerate(variants):
        lines = [line for line in results if line.variant == variant]
        x = [cases.index((line.case, line.skew)) + (place + 0.5) * width - 0.4 for line in lines]
        bars = axes.bar(x, [line.median_ms for line in lines], width, label=variant)
        axes.bar_label(bars, fmt="{:,.0f}", padding=2)
    axes.set_xticks(range(len(cases)), [f"{case}\n{skew}" for case, skew in cases])
    axes.set_ylabel("median, ms (less is better)")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def _commit() -> str:
    def git(*words: str) -> str:
        folder = pathlib.Path(__file__).parent
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "uncommitted"
    # The results themselves may differ: they are what this run writes.
    changed = git("status", "--porcelain", "--", "..", ":!results")
    return f"{commit}-dirty" if changed else commit


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"
