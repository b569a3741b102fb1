# Run `make` for a list of targets. Needs Python 3.11 with venv, a C++20 compiler and make; pip
# installs the rest. Variables: PYTHON (makes .venv), TORCH (requirement to install if torch is
# missing), PIP_FLAGS (such as --extra-index-url https://download.pytorch.org/whl/cpu), PY (an
# interpreter with all packages: gpu-test and gpu-bench use it instead of .venv, without network),
# WORKERS (processes that share the tests).

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
WORKERS ?= 2
UCX := libucx-cu12

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
EXTENSION_SOURCES := CMakeLists.txt setup.py flowtrain_core/_version.py $(shell find csrc -type f)
CXX_FILES = $(shell find csrc tests/cpp benchmarks -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh')
# By default UBSan only prints errors.
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
# Tests start several processes, which share the cores: one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# The tests of a file run in one worker, which makes their fixtures once. Files start in order:
# otherwise those with the fewest tests, which take longest, would be last. A worker that the
# watchdog has ended is not replaced, so that the run ends.
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 10
GPU_ENV := PYTHONPATH="$(CURDIR):$(CURDIR)/python:$$PYTHONPATH"

# Recipes are parallel themselves, and two installs into one .venv would race.
.NOTPARALLEL:
.PHONY: help setup demo test test-deep lint bench bench-setup gpu-test gpu-extension clean \
  ctest ctest-asan ctest-tsan model fuzz gpu-bench multihost

help:
	@echo 'setup        make .venv with everything for the demo and the tests'
	@echo 'demo         train a small VLM, then test it with plain Hugging Face'
	@echo 'test         lint, C++ tests, Python tests'
	@echo 'test-deep    C++ tests under sanitizers, and the tests that take minutes'
	@echo 'model        model-check the ring: all states of small sizes (SPIN)'
	@echo 'fuzz         fuzz all input from other processes: FUZZ_SECONDS=600, KEEP=1'
	@echo 'lint         ruff, mypy, clang-format, layering'
	@echo 'bench        run the benchmarks; names peers that are not installed'
	@echo 'bench-setup  install the peers of the benchmarks'
	@echo 'multihost    train over two hosts that namespaces emulate'
	@echo 'gpu-test     run the tests on a CUDA device'
	@echo 'gpu-bench    measure the pool on a CUDA device; REPORT=path writes a page'
	@echo 'clean        remove build results, but not .venv'

setup: $(STAMPS)/dev $(STAMPS)/extension

demo: $(STAMPS)/demo $(STAMPS)/extension
	@$(BIN)/flowtrain demo

# Builds the extension first, so that pip finds it up to date. Names an installed torch again, since
# pip would otherwise replace it to get the newest torchvision.
$(STAMPS)/demo $(STAMPS)/dev: pyproject.toml setup.py $(STAMPS)/tools | $(STAMPS)/extension
	@echo 'installing torch and the rest into $(VENV)'
	@torch=$$($(BIN)/python -c 'from importlib.metadata import distributions; \
	  print(*["torch==" + d.version for d in distributions(name="torch")] or ["$(TORCH)"])') \
	&& $(BIN)/pip install -q $(PIP_FLAGS) --no-build-isolation $$torch \
	  -e '.[demo$(if $(filter dev,$(@F)),$(comma)dev)]'
	@$(BIN)/python -c 'import torchvision' 2> /dev/null || $(remove_torchvision)
	@touch $(STAMPS)/demo $@

# PyPI's torchvision needs PyPI's torch, which is built for CUDA. With another torch it cannot be
# imported; transformers, which only checks whether it is installed, then fails too. A copy is kept
# for the tests that compare the pixels of videos with it.
define remove_torchvision
{ rm -rf $(VENV)/reference && mkdir $(VENV)/reference; \
  cp -r $(VENV)/lib/python3*/site-packages/torchvision $(VENV)/reference; \
  $(BIN)/pip uninstall -q -y torchvision; \
  echo 'torchvision does not fit the installed torch and was removed: AutoProcessor will not load' \
  'released models; PIP_FLAGS can name an index that has both'; }
endef

$(STAMPS)/extension: $(EXTENSION_SOURCES) $(STAMPS)/tools
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(STAMPS)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  f"{sys.executable} is Python {sys.version.split()[0]}; give PYTHON=, 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@$(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > $(STAMPS)/requires.txt
	@$(BIN)/pip install -q $(PIP_FLAGS) -r $(STAMPS)/requires.txt
	@touch $@

comma := ,

test: setup lint ctest
	$(PYTEST) $(SHARED)

test-deep: setup $(STAMPS)/ucx model ctest-asan ctest-tsan
	@command -v ip > /dev/null || $(call apt_install,iproute2) || true
	$(PYTEST) -m deep $(SHARED)

# A UCX without RDMA, for its tests. FlowTrain opens one if there is one, and needs none.
$(STAMPS)/ucx: $(STAMPS)/tools
	@$(BIN)/pip install -q $(PIP_FLAGS) --no-deps $(UCX) && touch $@ || echo '$(UCX): not installed'

model:
	@command -v spin > /dev/null || $(call apt_install,spin) \
	  || { echo 'model needs SPIN; run: apt-get install spin' >&2; exit 1; }
	@$(PYTHON) csrc/lockfree/model/check.py

# Installs Debian packages, if this user can.
define apt_install
{ [ $$(id -u) = 0 ] && command -v apt-get > /dev/null && { apt-get install -qq -y $(1) \
  || { apt-get update -qq && apt-get install -qq -y $(1); }; } > /dev/null 2>&1; }
endef

# KEEP=1 rewrites the corpus that ctest replays.
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

# In the build folder of the extension, so that the shipped library is the one tested.
ctest: EXTENSION = build/extension-$(shell $(BIN)/python -c \
  'import sys; print(sys.implementation.cache_tag)')
ctest: $(STAMPS)/extension
	$(BIN)/cmake -S . -B $(EXTENSION) --log-level=WARNING -DFLOWTRAIN_BUILD_TESTS=ON
	$(BIN)/cmake --build $(EXTENSION)
	$(BIN)/ctest --test-dir $(EXTENSION) -j $(WORKERS) --output-on-failure --no-tests=error

ctest-asan: $(STAMPS)/tools
	$(call run_ctest,asan,address$(comma)undefined,$(HALT_ON_UB))

ctest-tsan: $(STAMPS)/tools
	$(call run_ctest,tsan,thread,$(NO_ASLR))

# Arguments: folder under build/, sanitizers.
define configure
$(BIN)/cmake -G Ninja -S . -B build/$(1) --log-level=WARNING \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DFLOWTRAIN_SANITIZE='$(2)' -DFLOWTRAIN_BUILD_TESTS=ON -DFLOWTRAIN_BUILD_PYTHON=OFF \
	  -DFLOWTRAIN_CUDA=OFF $(CMAKE_ARGS)
endef

# Arguments: folder under build/, sanitizers, prefix of the ctest command.
define run_ctest
	$(call configure,$(1),$(2)) -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1
	$(BIN)/cmake --build build/$(1)
	$(3) $(BIN)/ctest --test-dir build/$(1) -j $(WORKERS) --output-on-failure --no-tests=error
endef

# Peers in PEERS_ALONE have large dependencies that the compared functions do not need: they are
# installed without them. A peer that cannot be installed is named, and the others continue.
PEERS_ALONE := verl prtpy binpacking mip torchtitan==0.3.0 spmd-types==0.2.3 torchdata triton
PEERS := iceoryx2 flatbuffers pyzmq ortools pyarrow cffi tyro

bench-setup: setup $(STAMPS)/ucx
	@for peer in $(PEERS_ALONE); do \
	  $(BIN)/pip install -q $(PIP_FLAGS) --no-deps $$peer || echo "$$peer: not installed"; done
	@# Its wheel has a package `tests`, which would hide ours from spawned processes.
	@rm -rf $(BIN)/../lib/python*/site-packages/tests
	@for peer in $(PEERS); do \
	  $(BIN)/pip install -q $(PIP_FLAGS) $$peer || echo "$$peer: not installed"; done
	@[ -e /usr/include/boost/lockfree/queue.hpp ] || $(call apt_install,libboost-dev) \
	  || echo 'libboost-dev: not installed'

bench: setup
	@for file in $(filter-out %/bench_packing.py,$(wildcard benchmarks/bench_*.py)); do \
	  $(BIN)/python $$file --json || exit 1; done
	@$(BIN)/python benchmarks/bench_packing.py --json --ours --parts lockstep objectives stream overhead elsewhere

# Two hosts by namespaces, which end with the command. Needs root and iproute2.
multihost: setup
	@$(BIN)/python benchmarks/multihost.py --json

gpu-test: $(GPU_NEEDS)
	$(GPU_ENV) $(PY) -m pytest -rA -m gpu tests/gpu

gpu-bench: $(GPU_NEEDS)
	$(GPU_ENV) $(PY) benchmarks/gpu_facts.py --json $(if $(REPORT),--report '$(REPORT)')

gpu-extension:
	$(PY) setup.py -q build_ext --inplace

clean:
	rm -rf build dist flowtrain.egg-info python/flowtrain.egg-info flowtrain_core/*.so
	rm -f $(STAMPS)/extension
