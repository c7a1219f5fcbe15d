"""Processes that share a card share nothing else."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def started(platform, seed):
    """A process that trains and judges a table of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.train_apart", platform, str(seed)],
        cwd=ROOT,
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# Equal seeds: the same tables, keys and rows in both, under the same number inside.
@pytest.mark.parametrize("seeds", [(7, 8), (7, 7)])
def test_two_processes_that_train_at_once_are_both_right(platform, seeds):
    with started(platform, seeds[0]) as one, started(platform, seeds[1]) as other:
        heard = [process.stdout.readline() for process in (one, other)]
        if heard == ["ready\n"] * 2:
            for process in (one, other):
                process.stdin.write("go\n")
                process.stdin.flush()
        ends = [process.communicate(timeout=100) for process in (one, other)]

    assert heard == ["ready\n"] * 2, ends
    assert [out for out, _ in ends] == ["right\n"] * 2, ends
