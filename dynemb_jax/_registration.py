"""Registers the native handlers with XLA, once, after checking that they fit.

XLA refuses handlers that are newer than itself while it creates a backend, which would leave the
user without any CPU backend; so the check is made here, at import, with a message.
"""

import functools
import pathlib
import re
from typing import Any

import jax

try:
    from dynemb_jax import _native
except ImportError as error:
    raise ImportError(
        f"dynemb_jax's native module is not there ({error}); build and install the package with "
        "'pip install .' (a C++ compiler is all it needs), and do not import it from its sources."
    ) from error


def _runtime_ffi_version() -> tuple[int, int] | None:
    """(major, minor) of the FFI that the installed jaxlib speaks; None if it does not say."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.is_file():
        return None
    text = header.read_text()
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if found[0] is None or found[1] is None:
        return None
    return int(found[0][1]), int(found[1][1])


def check_ffi_version(built: tuple[int, int], runtime: tuple[int, int] | None) -> None:
    """Raises ImportError if handlers built for one FFI version cannot load into another."""
    if runtime is None or (built[0] == runtime[0] and built[1] <= runtime[1]):
        return
    raise ImportError(
        f"dynemb_jax was built for XLA FFI {built[0]}.{built[1]}, the installed jaxlib speaks "
        f"{runtime[0]}.{runtime[1]}; upgrade jax and jaxlib, or rebuild with "
        "'pip install --no-binary dynemb-jax dynemb-jax'."
    )


def _register(module: Any, platform: str) -> None:
    check_ffi_version(module.ffi_api_version(), _runtime_ffi_version())
    for name, handler in module.registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform=platform)


_register(_native, "cpu")


@functools.cache
def native_for(platform: str) -> Any:
    """The native module that makes tables on a JAX platform; registers it at the first call.

    Raises:
        NotImplementedError: a platform for which there is none, or that was not built.
    """
    if platform == "cpu":
        return _native
    if platform not in ("gpu", "cuda"):
        raise NotImplementedError(
            f"tables on platform {platform!r} are not available; run with JAX_PLATFORMS=cpu or "
            "under jax.default_device(jax.devices('cpu')[0])."
        )
    try:
        from dynemb_jax import _native_cuda
    except ImportError as error:
        raise NotImplementedError(
            f"this dynemb_jax was built without CUDA ({error}); install it with 'pip install "
            "--config-settings=cmake.define.DYNEMB_CUDA=ON .', or run with JAX_PLATFORMS=cpu."
        ) from error
    _register(_native_cuda, "CUDA")
    return _native_cuda
