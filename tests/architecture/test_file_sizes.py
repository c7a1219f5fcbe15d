"""A file that needs scrolling needs splitting."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAP = 400
FOLDERS = ("benchmarks", "cpp", "dynemb_jax", "examples", "tests", "tools")
SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".py", ".pyi", ".sh"}
# path -> why it may be longer
EXCEPTIONS: dict[str, str] = {}

FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES
)


@pytest.mark.parametrize("name", FILES)
def test_file_stays_below_the_cap(name: str):
    lines = len((ROOT / name).read_text().splitlines())

    assert lines <= CAP or name in EXCEPTIONS, f"{name} has {lines} lines, the cap is {CAP}"


def test_every_exception_is_still_needed():
    stale = [n for n in EXCEPTIONS if len((ROOT / n).read_text().splitlines()) <= CAP]

    assert not stale
