# Targets for people. Each installs what it needs into $(VENV); the second call is fast.
#   make demo ARGS=--help          another interpreter: make test PYTHON=python3.12 VENV=.venv-3.12
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# Passed to the build of the native module, e.g. -C cmake.build-type=Debug
BUILD  ?=

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := pyproject.toml CMakeLists.txt $(shell find cpp -type f)
CPP    := $(shell find cpp -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

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

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/cpu_bench.py $(ARGS)

sanitize:
	PYTHON=$(PYTHON) tools/sanitize.sh $(ARGS)

clean:
	rm -rf build dist .venv .venv-* .pytest_cache .ruff_cache .hypothesis

# The extras' packages only: the library itself is installed by .native.
$(VENV)/.%: $(VENV)/.native
	$(PIP) "dynemb-jax[$*]"
	@touch $@

# Editable, so Python files are read from here; C++ changes rebuild the module.
$(VENV)/.native: $(NATIVE) | $(BIN)/python
	$(PIP) $(BUILD) -e .
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
