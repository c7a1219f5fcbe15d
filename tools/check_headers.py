"""Compiles each C++ header alone: a header that needs another one says so itself."""

import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import jax

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cuda_include() -> str | None:
    """Returns the toolkit's include folder, or None on a machine without CUDA."""
    nvcc = shutil.which("nvcc")
    roots = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", *map(str, _installed_toolkits())]
    if nvcc:
        roots.insert(0, str(pathlib.Path(nvcc).resolve().parent.parent))
    folders = [pathlib.Path(root) / "include" for root in roots if root]
    return next((str(f) for f in folders if (f / "cuda_runtime_api.h").exists()), None)


def _installed_toolkits() -> list[pathlib.Path]:
    return sorted(pathlib.Path("/usr/local").glob("cuda-*"), reverse=True)


def needs_cuda(header: pathlib.Path) -> bool:
    """Tells whether a header reaches the CUDA toolkit, itself or through one of ours."""
    text = header.read_text()
    ours = [ROOT / "cpp" / name for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]
    return bool(re.search(r"^#include <cuda", text, re.MULTILINE)) or any(
        needs_cuda(path) for path in ours if path.exists()
    )


def include_flags() -> list[str]:
    """Returns the -I flags; third parties are system headers, so their warnings stay quiet."""
    flags = ["-I", str(ROOT / "cpp")]
    system = [jax.ffi.include_dir(), sysconfig.get_paths()["include"]]
    if nanobind := importlib.util.find_spec("nanobind"):
        system.append(str(pathlib.Path(nanobind.origin or "").parent / "include"))
    if cuda := cuda_include():
        system.append(cuda)
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
    found = sorted((ROOT / "cpp").rglob("*.h"))
    headers = found if cuda_include() else [path for path in found if not needs_cuda(path)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(check, headers) if text]
    skipped = f", {len(found) - len(headers)} need CUDA" if len(found) > len(headers) else ""
    passed = f"{len(headers) - len(failures)} of {len(headers)} headers compile alone{skipped}"
    print("\n".join([*failures, passed]))
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
