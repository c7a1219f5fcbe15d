"""Runs the native benchmark, or reads what it printed, and brings its lines into the schema."""

import csv
import pathlib
import subprocess
from typing import Any

CASES = ("copy", "index")


def lines(path: pathlib.Path, quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Returns the lines of an executable's run, or of a .csv file that one has printed.

    Also what went wrong; the lines until then are good.
    """
    if path.suffix == ".csv":
        return _parsed(path.read_text()), ""
    command = [str(path.resolve()), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    failure = f"{path.name} exited with {done.returncode}: {done.stderr.strip()}"
    return _parsed(done.stdout), failure if done.returncode != 0 else ""


def _parsed(printed: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(printed.splitlines()))


def copy_rate(found: list[dict[str, Any]]) -> float | None:
    """Returns the bytes a second of the device copy among the lines."""
    rates = [
        float(x["bytes_floor"]) / float(x["step_ms"]) * 1e3 for x in found if x["op"] == "copy"
    ]
    return rates[0] if rates else None
