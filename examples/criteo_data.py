# SPDX-License-Identifier: Apache-2.0
"""Files of the Criteo display advertising format, read as a stream or generated.

A line is a click, thirteen counts and twenty-six categories, separated by tabs: `label`, `I1` to
`I13`, `C1` to `C26`. The label is 0 or 1, counts are integers, categories are hashes of up to eight
hexadecimal digits; counts and categories may be missing, which leaves nothing between two tabs.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

NUM_COUNTS, NUM_CATEGORIES = 13, 26
NUM_FIELDS = 1 + NUM_COUNTS + NUM_CATEGORIES
# The key of a category that is missing: hashes have 32 bits, keys have 64.
MISSING = 1 << 32

_GZIP_MAGIC = b"\x1f\x8b"
_NO_HEX = bytes(set(range(256)) - set(b"0123456789abcdefABCDEF"))


class DataError(Exception):
    """The file cannot be used; the text names the line and says what to do."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some lines of a file."""

    label: np.ndarray  # float32[n]: 1 where clicked
    counts: np.ndarray  # float32[n, NUM_COUNTS]: log(1 + count), 0 where missing or negative
    categories: np.ndarray  # uint64[n, NUM_CATEGORIES]: the hash, MISSING where missing

    def __len__(self) -> int:
        return len(self.label)


def read(path: Path, size: int) -> Iterator[Batch]:
    """Yields the lines of a plain or gzipped file in batches of `size`, the last one shorter.

    The file is never in memory as a whole.

    Raises:
        DataError: the file cannot be read, is empty, or has a line that is not of the format.
    """
    try:
        with _opened(path) as lines:
            numbered = enumerate(lines, start=1)
            for first in itertools.count():
                chunk = list(itertools.islice(numbered, size))
                if not chunk:
                    if first == 0:
                        raise DataError(f"{path} holds no lines; pass a file with data.")
                    return
                yield _parsed(path, chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot read {path} ({error}); pass a readable file of Criteo's format, plain or "
            "gzipped and whole."
        ) from error


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rb") if is_gzip else path.open("rb")


def _parsed(path: Path, lines: list[tuple[int, bytes]]) -> Batch:
    batch = Batch(
        np.empty(len(lines), np.float32),
        np.empty((len(lines), NUM_COUNTS), np.float64),
        np.empty((len(lines), NUM_CATEGORIES), np.uint64),
    )
    for row, (number, line) in enumerate(lines):
        fields = line.rstrip(b"\r\n").split(b"\t")
        if len(fields) != NUM_FIELDS:
            raise DataError(
                f"{path}, line {number}: {len(fields)} fields, expected {NUM_FIELDS} separated by "
                f"tabs (label, {NUM_COUNTS} integers, {NUM_CATEGORIES} categories); the line is "
                "cut short, or the file is of another format (a test set without labels, say)."
            )
        label, counts, categories = fields[0], fields[1 : NUM_COUNTS + 1], fields[NUM_COUNTS + 1 :]
        if label not in (b"0", b"1"):
            raise _wrong(path, number, "label", label, "0 or 1")
        batch.label[row] = label == b"1"
        try:
            batch.counts[row] = [int(count) if count else 0 for count in counts]
        except (ValueError, OverflowError):
            raise _first_wrong(path, number, "I", counts, "an integer or nothing") from None
        digits = b"".join(categories)
        if len(max(categories, key=len)) > 8 or digits.translate(None, _NO_HEX) != digits:
            raise _first_wrong(path, number, "C", categories, "up to 8 hexadecimal digits")
        batch.categories[row] = [int(c, 16) if c else MISSING for c in categories]
    counts = np.log1p(np.maximum(batch.counts, 0)).astype(np.float32)
    return dataclasses.replace(batch, counts=counts)


def _is_right(column: str, field: bytes) -> bool:
    if column == "C":
        return len(field) <= 8 and field.translate(None, _NO_HEX) == field
    try:
        float(int(field or b"0"))
    except (ValueError, OverflowError):
        return False
    return True


def _first_wrong(
    path: Path, number: int, column: str, fields: list[bytes], expected: str
) -> DataError:
    at = next(i for i, field in enumerate(fields) if not _is_right(column, field))
    return _wrong(path, number, f"{column}{at + 1}", fields[at], expected)


def _wrong(path: Path, number: int, column: str, field: bytes, expected: str) -> DataError:
    return DataError(
        f"{path}, line {number}: {column} must be {expected}, got "
        f"{field.decode(errors='replace')!r}; repair or remove the line."
    )


def filled(batch: Batch, size: int) -> tuple[Batch, np.ndarray]:
    """The batch with `size` lines, and float32[size]: 0 where a line only fills it up.

    One size means one compilation. A filler repeats the first line of its own batch: it brings in
    no key that the batch lacks, and its weight keeps it out of the loss.
    """
    rows = np.arange(size)
    real = rows < len(batch)
    rows = np.where(real, rows, 0)
    return (
        Batch(batch.label[rows], batch.counts[rows], batch.categories[rows]),
        real.astype(np.float32),
    )


def generate(path: Path, rows: int, seed: int) -> None:
    """Writes a file of the format with clicks that depend on counts and categories.

    Popular categories are frequent, and one value in ten is missing. A path that ends in .gz is
    compressed.
    """
    rng = np.random.default_rng(seed)
    # Hashes of 32 bits; every fourth column has a large catalogue, of which most are seen once.
    sizes = [1000 if column % 4 == 3 else 12 for column in range(NUM_CATEGORIES)]
    hashes = [rng.integers(1 << 32, size=size) for size in sizes]
    effects = [rng.normal(size=size) for size in sizes]
    slopes = rng.normal(size=NUM_COUNTS)
    with _written(path) as file:
        for _ in range(rows):
            picks = [min(int(rng.zipf(1.6)), size) - 1 for size in sizes]
            counts = rng.geometric(0.2, NUM_COUNTS) - 2  # from -1 on, as in the real files
            gone = rng.random(NUM_COUNTS + NUM_CATEGORIES) < 0.1
            shown = np.where(gone[:NUM_COUNTS], 0, np.log1p(np.maximum(counts, 0)))
            logit = 0.3 * float(slopes @ (shown - 1)) - 0.5
            for column in np.flatnonzero(~gone[NUM_COUNTS:][:8]):
                logit += 0.9 * effects[column][picks[column]]
            clicked = int(rng.random() < 1 / (1 + np.exp(-logit)))
            fields = [str(count) for count in counts]
            fields += [f"{hashes[column][pick]:08x}" for column, pick in enumerate(picks)]
            fields = ["" if missing else f for f, missing in zip(fields, gone, strict=True)]
            file.write(("\t".join([str(clicked), *fields]) + "\n").encode())


def _written(path: Path) -> Any:
    return gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb")


class StreamingAuc:
    """AUC of any number of predictions in fixed memory: scores are counted in 2**16 bins.

    Chance that a random positive scores above a random negative, a tie counts half; two scores in
    one bin are a tie.
    """

    BINS = 1 << 16

    def __init__(self) -> None:
        self.counts = np.zeros((2, self.BINS), np.int64)  # negatives, positives

    def add(self, label: np.ndarray, probability: np.ndarray) -> None:
        """Counts predictions: labels 0 or 1, probabilities in [0, 1]; both [n]."""
        bins = np.minimum((probability * self.BINS).astype(np.int64), self.BINS - 1)
        for of, row in enumerate(self.counts):
            row += np.bincount(bins[label == of], minlength=self.BINS)

    def value(self) -> float:
        """The AUC so far; NaN while one of the classes is absent."""
        negatives, positives = self.counts
        if not negatives.any() or not positives.any():
            return float("nan")
        below = np.cumsum(negatives) - negatives / 2
        return float((positives * below).sum() / (int(positives.sum()) * int(negatives.sum())))
