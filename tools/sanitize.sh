#!/usr/bin/env bash
# Builds the native module with AddressSanitizer and UndefinedBehaviorSanitizer in a virtual
# environment of its own, and runs the CPU suite's tests of it. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-sanitize
make --no-print-directory VENV=$venv PYTHON="${PYTHON:-python3}" $venv/.test BUILD="\
  -C build-dir=build/sanitize -C cmake.build-type=RelWithDebInfo -C install.strip=false \
  -C cmake.define.DYNEMB_SANITIZE=ON"

# The interpreter is not instrumented, so the runtimes go first; libstdc++ comes along because
# ASan must see the real __cxa_throw before the first exception.
preload=""
for library in libasan.so libubsan.so libstdc++.so; do
  preload+="$(g++ -print-file-name=$library) "
done
# Leaks: CPython and XLA keep memory for the life of the process on purpose.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# Left out: what adds Python and XLA to calls that other tests make as well.
exec env LD_PRELOAD="$preload" $venv/bin/pytest -n auto -m "not long and not gpu" \
  --ignore tests/architecture --ignore tests/examples --ignore tests/flax --ignore tests/oracle \
  --ignore tests/transform --ignore tests/contract "$@"
