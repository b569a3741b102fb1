# Run `make` for the list. Needs Python 3.11 with venv, a C++20 compiler and make; pip brings the
# rest. Variables: PYTHON (makes .venv), TORCH (what to install where torch is missing), PIP_FLAGS
# (say, --extra-index-url https://download.pytorch.org/whl/cpu), PY (an interpreter that has
# everything: gpu-test and gpu-bench then use it, and neither .venv nor the network).

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
BUILD_TOOLS := 'setuptools>=77' wheel 'pybind11>=3' 'cmake>=3.24' ninja
EXTENSION_SOURCES := CMakeLists.txt setup.py flowtrain_core/_version.py $(shell find csrc -type f)
CXX_FILES = $(shell find csrc tests/cpp -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh')
# By default undefined behaviour is only printed.
HALT_ON_UB := UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
FUZZ_SECONDS ?= 600
FUZZ_CXX ?= clang++-16
FUZZ_PACKAGES := --no-install-recommends clang-16 libclang-rt-16-dev llvm-16
# gcc 12's thread sanitizer cannot start under wide address randomization.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

ifdef PY
GPU_NEEDS := gpu-extension
else
PY := $(BIN)/python
GPU_NEEDS := setup
endif
# Processes share the cores; threads inside them would only fight.
TEST_ENV := OMP_NUM_THREADS=1
GPU_ENV := PYTHONPATH="$(CURDIR):$(CURDIR)/python:$$PYTHONPATH"

# What runs inside is parallel already, and two installs into one .venv would race.
.NOTPARALLEL:
.PHONY: help setup demo test test-deep lint bench bench-setup gpu-test gpu-extension clean \
  ctest ctest-asan ctest-tsan model fuzz gpu-bench

help:
	@echo 'setup        make .venv with everything that the demo and the tests need'
	@echo 'demo         train a small VLM through the pool, and let plain Hugging Face read with it'
	@echo 'test         lint, C++ tests, Python tests'
	@echo 'test-deep    C++ tests under sanitizers, and the tests that take minutes'
	@echo 'model        the ring, in every state that small sizes can reach (SPIN)'
	@echo 'fuzz         what other processes can write, changed at random: FUZZ_SECONDS=600, KEEP=1'
	@echo 'lint         ruff, mypy, clang-format, layering'
	@echo 'bench        the benchmarks; a peer that is not installed is named'
	@echo 'bench-setup  install the peers of the benchmarks'
	@echo 'gpu-test     tests on a CUDA device'
	@echo 'gpu-bench    what a CUDA device does with the pool; REPORT=path writes a page'
	@echo 'clean        remove what was built, but not .venv'

setup: $(STAMPS)/dev $(STAMPS)/extension

demo: $(STAMPS)/demo $(STAMPS)/extension
	@$(BIN)/flowtrain demo

# The extension is built first, so that pip finds it done. A torch that is there is named again, or
# pip would replace it to have the newest torchvision.
$(STAMPS)/demo $(STAMPS)/dev: pyproject.toml setup.py $(STAMPS)/tools | $(STAMPS)/extension
	@echo 'installing torch and the rest into $(VENV)'
	@torch=$$($(BIN)/python -c 'from importlib.metadata import distributions; \
	  print(*["torch==" + d.version for d in distributions(name="torch")] or ["$(TORCH)"])') \
	&& $(BIN)/pip install -q $(PIP_FLAGS) --no-build-isolation $$torch \
	  -e '.[demo$(if $(filter dev,$(@F)),$(comma)dev)]'
	@$(BIN)/python -c 'import torchvision' 2> /dev/null || $(remove_torchvision)
	@touch $(STAMPS)/demo $@

# The torchvision of PyPI needs the torch of PyPI, which is built for CUDA. With another torch it
# cannot be imported, and transformers, which only asks whether it is there, fails with it.
define remove_torchvision
{ $(BIN)/pip uninstall -q -y torchvision; \
  echo 'torchvision does not fit the installed torch and was removed: AutoProcessor will not load' \
  'released models; PIP_FLAGS can name an index that has both'; }
endef

$(STAMPS)/extension: $(EXTENSION_SOURCES) $(STAMPS)/tools
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(STAMPS)/tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  f"{sys.executable} is Python {sys.version.split()[0]}; give PYTHON=, 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q $(PIP_FLAGS) $(BUILD_TOOLS)
	@mkdir -p $(STAMPS) && touch $@

comma := ,

test: setup lint ctest
	$(TEST_ENV) $(BIN)/python -m pytest

test-deep: setup model ctest-asan ctest-tsan
	$(TEST_ENV) $(BIN)/python -m pytest -m deep

model:
	@command -v spin > /dev/null || $(call apt_install,spin) \
	  || { echo 'model needs SPIN; run: apt-get install spin' >&2; exit 1; }
	@$(PYTHON) csrc/lockfree/model/check.py

# Installs a Debian package, where that is possible.
define apt_install
{ [ $$(id -u) = 0 ] && command -v apt-get > /dev/null && { apt-get install -qq -y $(1) \
  || { apt-get update -qq && apt-get install -qq -y $(1); }; } > /dev/null 2>&1; }
endef

# KEEP=1 writes the corpus that ctest replays anew, from what was found.
fuzz: $(STAMPS)/tools
	@command -v $(FUZZ_CXX) > /dev/null || $(call apt_install,$(FUZZ_PACKAGES)) \
	  || { echo 'fuzz needs clang with libFuzzer; run: apt-get install clang-16' \
	  'libclang-rt-16-dev, or give FUZZ_CXX=clang++' >&2; exit 1; }
	$(call configure,fuzz,fuzzer-no-link$(comma)address$(comma)undefined) \
	  -DCMAKE_CXX_COMPILER=$(FUZZ_CXX)
	$(BIN)/cmake --build build/fuzz --target fuzz_control fuzz_descriptor fuzz_socket
	$(HALT_ON_UB) $(PYTHON) tests/cpp/fuzz/run.py build/fuzz --seconds $(FUZZ_SECONDS) \
	  $(if $(KEEP),--keep)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/python -m pytest -q tests/python/test_layering.py

# In the build folder of the extension: the library that is tested is the one that ships.
ctest: EXTENSION = build/extension-$(shell $(BIN)/python -c \
  'import sys; print(sys.implementation.cache_tag)')
ctest: $(STAMPS)/extension
	$(BIN)/cmake -S . -B $(EXTENSION) --log-level=WARNING -DFLOWTRAIN_BUILD_TESTS=ON
	$(BIN)/cmake --build $(EXTENSION)
	$(BIN)/ctest --test-dir $(EXTENSION) --output-on-failure --no-tests=error

ctest-asan: $(STAMPS)/tools
	$(call run_ctest,asan,address$(comma)undefined,$(HALT_ON_UB))

ctest-tsan: $(STAMPS)/tools
	$(call run_ctest,tsan,thread,$(NO_ASLR))

# Arguments: folder under build/, sanitizers.
define configure
$(BIN)/cmake -G Ninja -S . -B build/$(1) --log-level=WARNING \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DFLOWTRAIN_SANITIZE='$(2)' -DFLOWTRAIN_BUILD_TESTS=ON -DFLOWTRAIN_BUILD_PYTHON=OFF \
	  -DFLOWTRAIN_CUDA=OFF
endef

# The same, and a prefix of the run.
define run_ctest
	$(call configure,$(1),$(2))
	$(BIN)/cmake --build build/$(1)
	$(3) $(BIN)/ctest --test-dir build/$(1) --output-on-failure --no-tests=error
endef

# Some peers need far more than the function that is compared: they come alone. One that cannot be
# had is named, and does not stop the others.
PEERS_ALONE := verl trl prtpy binpacking mip
PEERS := iceoryx2 flatbuffers pyzmq ortools pyarrow cffi

bench-setup: setup
	@for peer in $(PEERS_ALONE); do \
	  $(BIN)/pip install -q $(PIP_FLAGS) --no-deps $$peer || echo "$$peer: not installed"; done
	@for peer in $(PEERS); do \
	  $(BIN)/pip install -q $(PIP_FLAGS) $$peer || echo "$$peer: not installed"; done
	@[ -e /usr/include/boost/lockfree/queue.hpp ] || $(call apt_install,libboost-dev) \
	  || echo 'libboost-dev: not installed'

bench: setup
	@for file in $(filter-out %/bench_packing.py,$(wildcard benchmarks/bench_*.py)); do \
	  $(BIN)/python $$file --json || exit 1; done
	@$(BIN)/python benchmarks/bench_packing.py --json --ours --parts lockstep objectives stream overhead elsewhere

gpu-test: $(GPU_NEEDS)
	$(GPU_ENV) $(PY) -m pytest -rA -m gpu tests/gpu

gpu-bench: $(GPU_NEEDS)
	$(GPU_ENV) $(PY) benchmarks/gpu_facts.py --json $(if $(REPORT),--report '$(REPORT)')

gpu-extension:
	$(PY) setup.py -q build_ext --inplace

clean:
	rm -rf build dist flowtrain.egg-info python/flowtrain.egg-info flowtrain_core/_C.*.so
	rm -f $(STAMPS)/extension
