"""Compiles each C++ header alone: a header that needs another one says so itself."""

import concurrent.futures
import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig

import jax

ROOT = pathlib.Path(__file__).resolve().parent.parent


def include_flags() -> list[str]:
    """Returns the -I flags; third parties are system headers, so their warnings stay quiet."""
    flags = ["-I", str(ROOT / "cpp")]
    system = [jax.ffi.include_dir(), sysconfig.get_paths()["include"]]
    if nanobind := importlib.util.find_spec("nanobind"):
        system.append(str(pathlib.Path(nanobind.origin or "").parent / "include"))
    for folder in system:
        flags += ["-isystem", folder]
    return flags


def check(header: pathlib.Path) -> str:
    """Returns the compiler's complaint about one header, or an empty string."""
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    # Included from stdin, because the pragma-once warning fires on a main file.
    source = f'#include "{header.relative_to(ROOT / "cpp")}"\n'
    result = subprocess.run(
        [*command, *include_flags(), "-x", "c++", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if result.returncode == 0 else f"{header.relative_to(ROOT)}:\n{result.stderr}"


def main() -> int:
    """Returns the process's exit status."""
    headers = sorted((ROOT / "cpp").rglob("*.h"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(check, headers) if text]
    print("\n".join([*failures, f"{len(headers) - len(failures)} of {len(headers)} headers alone"]))
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
