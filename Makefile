# Everything starts from a bare machine: Python 3.11 or later, a C++ compiler, and make.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Python of gpu-test and gpu-bench: a machine with a GPU brings its own torch.
PY ?= $(PYTHON)
CORE := $(shell find csrc -type f) CMakeLists.txt setup.py pyproject.toml flowtrain_core/_version.py

.PHONY: setup setup-demo demo test test-deep lint bench gpu-test gpu-bench clean

setup: $(VENV)/.dev
setup-demo: $(VENV)/.core

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" \
	  "setuptools>=77" wheel "pybind11>=3" cmake ninja
	@touch $@

# Editable, so that the sources are what runs; made again when the core has changed.
$(VENV)/.core: $(VENV)/.torch $(CORE)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

demo: setup-demo
	$(BIN)/flowtrain demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $$(find csrc tests/cpp -name '*.hpp' -o -name '*.cpp' -o -name '*.cu')

CMAKE_TESTS = $(BIN)/cmake -G Ninja -S . -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
  -DFLOWTRAIN_BUILD_PYTHON=OFF -DFLOWTRAIN_BUILD_TESTS=ON -DFLOWTRAIN_CUDA=OFF

test: lint
	$(CMAKE_TESTS) -B build/tests > build/tests.log
	$(BIN)/cmake --build build/tests
	$(BIN)/ctest --test-dir build/tests --output-on-failure
	$(BIN)/pytest -m "not deep and not gpu"

test-deep: setup
	$(CMAKE_TESTS) -B build/asan -DCMAKE_BUILD_TYPE=Debug -DFLOWTRAIN_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure
	$(CMAKE_TESTS) -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFLOWTRAIN_SANITIZE=thread
	$(BIN)/cmake --build build/tsan
	$(BIN)/ctest --test-dir build/tsan --output-on-failure
	$(BIN)/pytest -m "deep and not gpu"

bench: setup
	$(BIN)/python benchmarks/bench_handoff.py

gpu-test:
	$(PY) setup.py build_ext --inplace
	PYTHONPATH=.:python $(PY) -m pytest -m gpu tests/gpu

gpu-bench:
	$(PY) setup.py build_ext --inplace
	PYTHONPATH=.:python $(PY) benchmarks/gpu_facts.py

clean:
	rm -rf build dist *.egg-info flowtrain_core/_C*.so
