"""The native CUDA module (cpp/python/module_cuda.cc): the same functions as _native."""

from dynemb_jax._native import check as check
from dynemb_jax._native import close_group as close_group
from dynemb_jax._native import create_group as create_group
from dynemb_jax._native import ffi_api_version as ffi_api_version
from dynemb_jax._native import get_rows as get_rows
from dynemb_jax._native import home_buckets as home_buckets
from dynemb_jax._native import registrations as registrations
from dynemb_jax._native import renew as renew
from dynemb_jax._native import stats as stats
from dynemb_jax._native import version as version

def allow_cooperative_launch(allowed: bool) -> None: ...
