"""What a GPU benchmark leaves: one CSV schema, and the printed table with the targets."""

import csv
import datetime
import pathlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

FIELDS = [
    "date", "commit", "device", "jax", "case", "variant", "op", "tables", "n", "dim",
    "keys_per_table", "skew", "load", "hit_rate", "optimizer", "dtype", "unique_rows", "step_ms",
    "piped_ms", "min_ms", "bytes_floor", "floor_ms", "tb_per_s", "rate", "repeats", "timing",
]  # fmt: skip
# Columns that the figures of a line are rounded to.
DIGITS = {
    "load": 4, "hit_rate": 4, "step_ms": 4, "piped_ms": 4, "min_ms": 4, "floor_ms": 4,
    "tb_per_s": 3, "rate": 4,
}  # fmt: skip

Row = dict[str, Any]

# What we want at least, on an H200: milliseconds of a piped step at most.
MUST_MS = {
    # case, op, dim, optimizer
    ("ten_tables", "train", 128, "sgd"): 0.74,
    ("ten_tables", "train", 128, "adam"): 0.95,
    ("ten_tables", "eval", 128, "sgd"): 0.32,
    ("zipf", "train", 128, "sgd"): 0.70,
    ("zipf", "train", 128, "adam"): 0.95,
    ("zipf", "train", 64, "sgd"): 0.48,
    ("uniform", "train", 128, "sgd"): 1.0,
    ("uniform", "train", 128, "adam"): 1.6,
    ("small_batch", "train", 128, "sgd"): 0.12,
}
# The same for the hash table alone: 10**9 keys a second at least, at every load.
MUST_RATE = {
    # op, dim, hit_rate
    ("find_row", 0, 1.0): 12.0,
    ("find", 64, 1.0): 5.2,
    ("find_or_insert", 64, 0.5): 4.2,
    ("insert_evicting", 64, 0.0): 2.5,
}
MUST_DOUBLING_MS = 10.0
MUST_PEAK_OVER_FINAL = 1.25


def provenance(commit: str | None) -> Row:
    """Returns what a reader needs to repeat the run; no names of machines or people."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit or _commit(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }


def finished(row: Mapping[str, Any], copy_rate: float) -> Row:
    """Returns the line with what follows from its times: floor, achieved rate, rounding.

    Where steps were piped that time counts, else the median by events.
    """
    line = dict(row)
    taken = float(line.get("piped_ms") or line["step_ms"])
    floor = float(line["bytes_floor"])
    line["bytes_floor"] = round(floor)
    line["floor_ms"] = floor / copy_rate * 1e3
    line["tb_per_s"] = floor / taken / 1e9
    line["rate"] = int(line["n"]) / taken / 1e6
    for name, digits in DIGITS.items():
        if line.get(name) not in (None, ""):
            line[name] = round(float(line[name]), digits)
    return line


def must(line: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Returns the target of a line of ours, and whether the line meets it."""
    case, op, dim = line["case"], line["op"], int(line["dim"])
    if op in ("double", "double_call"):
        return f"{MUST_DOUBLING_MS:g} ms", float(line["step_ms"]) <= MUST_DOUBLING_MS
    has_goal = line["variant"] == "dynemb" and line["dtype"] == "float32"
    if has_goal and (case, op, dim, line["optimizer"]) in MUST_MS:
        wanted = MUST_MS[case, op, dim, line["optimizer"]]
        return f"{wanted:g} ms", float(line["piped_ms"]) <= wanted
    if line["variant"] == "native" and (op, dim, float(line["hit_rate"])) in MUST_RATE:
        wanted = MUST_RATE[op, dim, float(line["hit_rate"])]
        return f"{wanted:g} G/s", float(line["rate"]) >= wanted
    return None


def write(path: pathlib.Path, fields: Sequence[str], lines: Iterable[Row]) -> None:
    """Writes a CSV anew: one run, one commit, one machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def read(path: pathlib.Path) -> list[Row]:
    """Reads a CSV; an absent one has no lines."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def text(line: Mapping[str, Any], goals: bool = False) -> str:
    """Returns one line for people; `goals`: with the target, which holds for full sizes."""
    name = " ".join(str(line.get(x, "")) for x in ("case", "op", "optimizer")).strip()
    shape = f"D {line['dim']}"
    if line["variant"] == "native":
        shape += f" load {float(line['load']):.2f} hits {float(line['hit_rate']):.1f}"
    piped = line.get("piped_ms")
    times = f"step {float(line['step_ms']):8.4f}"
    times += f"  piped {float(piped):8.4f}" if piped not in (None, "") else " " * 16
    goal = must(line) if goals else None
    verdict = f"must {goal[0]:>8} {'ok' if goal[1] else 'MISSED'}" if goal else ""
    clock = " (host)" if line["timing"] == "host" else ""
    return (
        f"{name:32}{shape:26}{line['variant']:13} {times} ms  floor {float(line['floor_ms']):7.4f}"
        f"  {float(line['tb_per_s']):5.2f} TB/s  {float(line['rate']):6.2f} G/s  {verdict}{clock}"
    )


def _commit() -> str:
    folder = pathlib.Path(__file__).parent
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
