"""Types of the native module (cpp/python/module.cc)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def registrations() -> dict[str, Any]: ...
def ffi_api_version() -> tuple[int, int]: ...
def create_group(
    group: int, device: int, first_version: int, seed: int, tables: list[dict[str, Any]]
) -> None: ...
def close_group(group: int) -> None: ...
def version(group: int, device: int) -> int: ...
def stats(group: int, device: int) -> list[dict[str, int]]: ...
def get_rows(
    group: int,
    device: int,
    table: int,
    keys: NDArray[np.uint64],
    found: NDArray[np.uint8],
    rows: NDArray[np.float32],
    state: NDArray[np.float32],
) -> None: ...
def home_buckets(
    keys: NDArray[np.uint64], num_buckets: int, buckets: NDArray[np.int64]
) -> None: ...
