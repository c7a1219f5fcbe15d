"""The native CUDA module (cpp/python/module_cuda.cc): the functions of _native, and tests' own."""

from dynemb_jax._native import check as check
from dynemb_jax._native import clear as clear
from dynemb_jax._native import close_group as close_group
from dynemb_jax._native import create_group as create_group
from dynemb_jax._native import drain_evicted as drain_evicted
from dynemb_jax._native import erase_below as erase_below
from dynemb_jax._native import ffi_api_version as ffi_api_version
from dynemb_jax._native import get_rows as get_rows
from dynemb_jax._native import home_buckets as home_buckets
from dynemb_jax._native import path_buckets as path_buckets
from dynemb_jax._native import registrations as registrations
from dynemb_jax._native import renew as renew
from dynemb_jax._native import stats as stats
from dynemb_jax._native import version as version

# For tests alone. The nth next call of a driver function (cuMemAddressReserve, cuMemCreate,
# cuMemMap, cuMemSetAccess) by a table fails with the CUresult, out of memory by default; 0 disarms.
# Returns how many calls the one armed before had to go; 0: it has failed, or none was armed.
def fail_driver_call(name: str, nth: int, error: int = 2) -> int: ...

# What all tables of this process hold of the driver's things: ranges (of addresses), allocations,
# mappings, and reserved_bytes, allocated_bytes, mapped_bytes.
def driver_use() -> dict[str, int]: ...

# Free memory of a card, whoever uses the rest.
def free_bytes(device: int) -> int: ...

# For tests: without it, absent keys take two launches.
def allow_cooperative_launch(allowed: bool) -> None: ...
