#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: installs a wheel that has the CUDA module, runs the suite on the
# GPU, then the benchmarks. Nothing is downloaded; JAX with its CUDA plugin must be installed.
#   tools/gpu.sh [--tests-only | --bench-only] [--quick] [--commit ID] WHEEL [PYTEST OPTIONS ...]
# Results go to $OUT, or to a folder named at the end: the log of each part, and the CSVs.
set -euo pipefail

tests=1 bench=1 quick=() commit=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --tests-only) bench=0 ;;
    --bench-only) tests=0 ;;
    --quick) quick=(--quick) ;;
    --commit)
      commit=(--commit "$2")
      shift
      ;;
    *)
      echo "unknown option $1" >&2
      exit 2
      ;;
  esac
  shift
done
wheel=$(realpath "$1")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=${TMPDIR:-/tmp}/dynemb_jax_gpu.$UID
# An older install would leave files that the new wheel no longer has.
rm -rf "$work"
mkdir -p "$work"
out=${OUT:-$work/results}
mkdir -p "$out"
out=$(realpath "$out")
if [[ ${#commit[@]} -eq 0 ]]; then
  commit=(--commit "$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)")
fi

python3 -m pip install --quiet --no-index --no-deps --target "$work/site" "$wheel"
# Away from the sources, which would shadow the installed package.
cp -r "$root/tests" "$root/examples" "$root/pyproject.toml" "$work"
cp "$root"/benchmarks/*.py "$work"
cd "$work"
export PYTHONPATH=$work/site PYTHONUNBUFFERED=1

status=0 # the benchmarks run although a test has failed
if ((tests)); then
  # Tests run in several processes: none may take the card for itself.
  XLA_PYTHON_CLIENT_PREALLOCATE=false python3 -m pytest -m "gpu and not long" -n 8 -q "$@" 2>&1 |
    tee "$out/tests.log" || status=1
fi
if ((bench)); then
  native=()
  program=$work/site/dynemb_jax/dynemb_index_bench
  if [[ -f $program ]]; then # a wheel built with DYNEMB_BENCHMARKS
    chmod +x "$program"
    native=(--native "$program")
  fi
  # XLA's tables in its own part of the card, ours in the rest.
  XLA_PYTHON_CLIENT_PREALLOCATE=true \
    XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.35} \
    python3 gpu_bench.py --out "$out" "${commit[@]}" "${quick[@]}" "${native[@]}" 2>&1 |
    tee "$out/bench.log" || status=1
fi

echo
((tests)) && tail -n 1 "$out/tests.log"
((bench)) && sed -n '/^G\/s:/,$p' "$out/bench.log"
echo "results: $out"
exit "$status"
