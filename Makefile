# Targets for people. Each installs what it needs into $(VENV); the second call is fast.
#   make demo ARGS=--help          another interpreter: make test PYTHON=python3.12 VENV=.venv-3.12
#   make demo CUDA=                leaves an NVIDIA GPU alone
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# Passed to the build of the native module, e.g. -C cmake.build-type=Debug
BUILD  ?=
# 12 or 13 where there is an NVIDIA GPU and an nvcc (12.4 or newer) to compile for it; else empty.
CUDA   := $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' && nvcc --version 2>/dev/null | \
            sed -nE 's/.*release (12)\.[4-9],.*/\1/p; s/.*release (13)\..*/\1/p')

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := pyproject.toml CMakeLists.txt $(shell find cpp -type f)
NVCC   := $(if $(CUDA),-C cmake.define.DYNEMB_CUDA=ON -C cmake.define.CMAKE_CUDA_ARCHITECTURES=native)
CPP    := $(shell find cpp benchmarks/native -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test long lint format bench sanitize clean

demo: $(VENV)/.demo
	$(BIN)/python examples/movielens.py $(ARGS)

test: $(VENV)/.test
	$(BIN)/pytest -n auto -m "not long and not gpu" $(ARGS)

long: $(VENV)/.test
	$(BIN)/pytest -n auto -m long $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python tools/check_headers.py
	$(BIN)/python tools/reference.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)
	$(BIN)/python tools/reference.py

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/cpu_bench.py $(ARGS)

sanitize:
	PYTHON=$(PYTHON) tools/sanitize.sh $(ARGS)

clean:
	rm -rf build dist .venv .venv-* .pytest_cache .ruff_cache .hypothesis

# The demo runs on the GPU; tests and benchmarks of these targets are the CPU's.
$(VENV)/.demo: JAX_CUDA = $(CUDA:%=,cuda%)
test long bench: export JAX_PLATFORMS = cpu

# The extras' packages only: the library itself is installed by .native.
$(VENV)/.%: $(VENV)/.native
	$(PIP) "dynemb-jax[$*$(JAX_CUDA)]"
	@touch $@

# Editable, so Python files are read from here; C++ changes rebuild the module.
$(VENV)/.native: $(NATIVE) | $(BIN)/python
	$(PIP) $(NVCC) $(BUILD) -e .
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
