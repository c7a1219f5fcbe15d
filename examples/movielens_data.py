# SPDX-License-Identifier: Apache-2.0
"""MovieLens-100K: fetch it, check it, and turn it into batches of raw ids.

The file comes from a pinned wheel on the package index, so that the demo needs no second download
host. Both the wheel and the file in it are checked against the digests below.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PACKAGE = "recbole==1.2.1"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
MEMBER_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
SECONDS_PER_DAY = 86_400


class DataError(Exception):
    """The ratings cannot be had; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Interactions:
    """Ratings in time order; every array has one entry a rating. Ids are the file's own."""

    user: np.ndarray  # int64[n]
    item: np.ndarray  # int64[n]
    history: np.ndarray  # int64[n, length]: the user's earlier items, the newest first
    history_length: np.ndarray  # int32[n]: how many of them are real, possibly none
    liked_share: np.ndarray  # float32[n]: how often the user liked an item before, centred on 0
    label: np.ndarray  # float32[n]: 1 for four stars or more
    day: np.ndarray  # int64[n]: calendar day (UTC), 0 for the first

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice | np.ndarray) -> Interactions:
        columns = (getattr(self, field.name)[rows] for field in dataclasses.fields(self))
        return Interactions(*columns)


def load(path: Path | None, *, history_length: int) -> Interactions:
    """Reads ratings, sorted by time.

    Args:
        path: A `.inter` file or GroupLens' `u.data`; None takes the cached or downloaded file.
        history_length: How many earlier items of the user go with each rating.

    Raises:
        DataError: The file is missing, malformed, or cannot be downloaded and verified.
    """
    user, item, rating, seconds = _parse(path if path is not None else _cached_file())
    # Stable: ratings of the same second keep the order of the file, so a run repeats exactly.
    order = np.argsort(seconds, kind="stable")
    user, item, rating, seconds = user[order], item[order], rating[order], seconds[order]
    label = (rating >= 4).astype(np.float32)
    history, lengths = _histories(user, item, history_length)
    day = (seconds // SECONDS_PER_DAY).astype(np.int64)
    return Interactions(
        user, item, history, lengths, _liked_share(user, label), label, day - day[0]
    )


def batches(data: Interactions, size: int) -> Iterator[tuple[Interactions, np.ndarray]]:
    """Yields `(batch, weight)`, all batches of one size; weight is 0.0 where a row is filling.

    One size means one compilation. A filler repeats a row of its own batch: it brings in no key
    that the batch lacks, and its weight keeps it out of the loss.
    """
    for start in range(0, len(data), size):
        rows = np.arange(start, start + size)
        real = rows < len(data)
        yield data[np.where(real, rows, start)], real.astype(np.float32)


def _histories(user: np.ndarray, item: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Each user's items before each rating, the newest first, and how many of them there are."""
    history = np.zeros((len(user), length), np.int64)
    lengths = np.zeros(len(user), np.int32)
    for rows in _groups(user):
        for back in range(1, min(length, len(rows) - 1) + 1):
            history[rows[back:], back - 1] = item[rows[:-back]]
        lengths[rows] = np.minimum(np.arange(len(rows)), length)
    return history, lengths


def _liked_share(user: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Share of earlier ratings of the user that were likes, minus a half.

    One like and one dislike are added to the counts, so that a new user starts at 0.
    """
    share = np.zeros(len(user), np.float32)
    for rows in _groups(user):
        earlier_likes = np.cumsum(label[rows]) - label[rows]
        share[rows] = (earlier_likes + 1) / (np.arange(len(rows)) + 2) - 0.5
    return share


def _groups(values: np.ndarray) -> list[np.ndarray]:
    """Positions of each distinct value, in order of position."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order])) + 1
    return np.split(order, starts)


def _parse(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Columns user, item, rating, seconds of a tab-separated file with or without a header."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and lines[0].startswith("user_id"):
            del lines[0]  # the header of .inter files; u.data has none
        if not lines:
            raise ValueError("it holds no ratings")
        columns = np.array([line.split("\t")[:4] for line in lines], dtype=str, ndmin=2)
        user, item = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
        rating, seconds = columns[:, 2].astype(np.float64), columns[:, 3].astype(np.float64)
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} is not a readable ratings file ({error}); pass --data with a tab-separated "
            "file of user, item, rating and timestamp, like ml-100k.inter or u.data."
        ) from error
    return user, item, rating, seconds


def _cached_file() -> Path:
    """The verified file in the user's cache, downloaded when it is not there or not intact."""
    target = _cache_dir() / "ml-100k.inter"
    if target.is_file() and _sha256(target.read_bytes()) == MEMBER_SHA256:
        return target
    content = _download()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
            part.write(content)
        # A rename is atomic: another process sees no file or the whole one.
        os.replace(part.name, target)
    except OSError as error:
        raise DataError(
            f"cannot write {target} ({error}); set XDG_CACHE_HOME to a writable folder, or pass "
            "--data PATH."
        ) from error
    return target


def _cache_dir() -> Path:
    """The platform's folder for what can be fetched again."""
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "dynemb_jax"


def _download() -> bytes:
    """The ratings file out of the pinned wheel, both verified."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", PACKAGE, "-d", folder]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(folder).glob("*.whl"))
        if result.returncode != 0 or len(wheels) != 1:
            reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise DataError(
                f"cannot download MovieLens-100K (the wheel {PACKAGE}): {reason}\n"
                "Needed once: pip in this environment and a reachable package index. Without "
                "them, pass --data PATH to ml-100k.inter or to GroupLens' u.data."
            )
        _verify(wheels[0].read_bytes(), WHEEL_SHA256, wheels[0].name)
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(MEMBER)
    _verify(content, MEMBER_SHA256, MEMBER)
    return content


def _verify(content: bytes, expected: str, name: str) -> None:
    actual = _sha256(content)
    if actual != expected:
        raise DataError(
            f"{name} has sha256 {actual}, expected {expected}: it is not the pinned file, so it "
            "was not used. Try again, or pass --data PATH to a copy that you trust."
        )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
