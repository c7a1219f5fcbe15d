#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: installs a wheel that has the CUDA module, runs the suite on the
# GPU, then the benchmarks. Nothing is downloaded; JAX with its CUDA plugin must be installed.
#   tools/gpu.sh WHEEL [PYTEST OPTIONS ...]
set -euo pipefail
wheel=$(realpath "$1")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
python3 -m pip install --quiet --no-index --no-deps --target "$work/site" "$wheel"
# Away from the sources, which would shadow the installed package.
cp -r "$root/tests" "$root/pyproject.toml" "$work"
cd "$work"
export PYTHONPATH=$work/site
# Tests run in several processes: none may take the card for itself.
XLA_PYTHON_CLIENT_PREALLOCATE=false python3 -m pytest -m "gpu and not long" -n 8 -q "$@"
