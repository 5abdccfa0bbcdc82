# The one entry for users, developers and CI: `make help` lists the targets. Needs Python 3.11 or newer and make.

PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= smollm2-135m

# Files of the MaskBench collection, for `make accept`; without them it uses the schemas in tests/acceptance.
SCHEMAS ?= $(abspath $(wildcard ../shared/data/maskbench-sample))

# Our folders are importable by accident when the checkout is on sys.path; kernels/ would then shadow another package.
export PYTHONSAFEPATH := 1

BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip install --disable-pip-version-check
# An environment is as old as what it was made from: pyproject.toml, and the C that is compiled into it.
SUM   := $(shell cat pyproject.toml kernels/native/source/*.* kernels/native/source/*/* | cksum | tr ' ' '-')
USE   := $(VENV)/.stamp-use-$(SUM)
DEV   := $(VENV)/.stamp-dev-$(SUM)

# Operations of `make sim`, and the seed that they follow from.
OPERATIONS ?= 20000000
SEED       ?= 1

# The oldest Triton that we support; every kernel is compiled with it, too.
OLDEST := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' '-')),$(VENV)/triton-oldest)

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu gpu-dry compiled accept sim soak overload fast lint house flows format docs bench serve model install dev
.PHONY: lock dist wheels clean

help:     ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(DEV) model  ## run a small program and write its timeline to demo.html
	$(BIN)/bough run examples/demo.py --timeline demo.html

test: $(DEV) $(OLDEST) model  ## run all tests
	OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-gpu: $(DEV)  ## on a machine with a GPU: the tests of the kernels, compiled, and of the engine there
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "torch sees no CUDA device")'
	$(BIN)/pytest tests/kernels tests/gpu tests/runtime/models/test_invariant.py tests/runtime/runner/test_gpu_shared_reads.py

compiled: $(DEV) $(OLDEST)  ## compile the kernels that have changed for every GPU, and write down what they need: tests/kernels/compiled
	$(BIN)/python -m bough.kernels.compile_check --ledger tests/kernels/compiled --update
	PYTHONPATH=$(OLDEST) $(BIN)/python -m bough.kernels.compile_check --ledger tests/kernels/compiled --update

gpu-dry: $(DEV)  ## the engine's whole path for GPUs on a machine without one, interpreted and counted: minutes
	BOUGH_GPU_DRY=full OMP_WAIT_POLICY=passive $(BIN)/pytest -v tests/gpu/dry tests/support/dry_gpu

accept: $(DEV) model  ## check every promise of docs/acceptance.md at full size: hours, on a quiet machine
	BOUGH_ACCEPTANCE=full BOUGH_ACCEPTANCE_SCHEMAS="$(SCHEMAS)" $(BIN)/pytest -v tests/acceptance tests/radix/test_mutants.py \
		tests/constrain/search/test_fuzz.py
	$(BIN)/python tests/radix/fuzz.py --operations 1000000
	$(BIN)/bough bench throughput --at-least 5

sim: $(DEV)  ## simulate scheduler, cache and programs under faults: OPERATIONS=20000000 SEED=1 take an hour or so
	env -u PYTHONSAFEPATH $(BIN)/python -m tests.sim.simulate --operations $(OPERATIONS) --seed $(SEED)

soak: $(DEV)  ## ten thousand requests and two thousand programs over HTTP, each compared with what it gets alone: 15 minutes
	BOUGH_ACCEPTANCE=full $(BIN)/pytest -v -s tests/acceptance/load/test_soak.py

overload: $(DEV)  ## the server at up to ten times what it can do, for 6 minutes
	BOUGH_ACCEPTANCE=full $(BIN)/pytest -v -s tests/acceptance/load/test_overload.py

fast: $(DEV)  ## run the tests that need no model and take seconds
	$(BIN)/pytest -q -m "not model and not slow and not gpu"

lint: $(DEV)  ## check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py --strict

house: $(DEV)  ## show how the code is laid out: entries, cycles, fragments, lines; with REV=... what has changed since
	$(BIN)/python scripts/house.py --strict $(if $(REV),--against $(REV))

flows: $(DEV) model  ## count the files that four everyday flows pass through
	$(BIN)/python scripts/flows.py

format: $(DEV)  ## rewrite the code to the common style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(DEV)  ## build the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: model  ## measure the programs of benchmarks/
	$(BIN)/bough bench programs

serve: model  ## serve the default model over HTTP
	$(BIN)/bough serve

model: $(USE)  ## fetch the default model, if it is not there yet
	$(BIN)/bough pull $(MODEL)

install: $(USE)  ## make the environment and install bough into it

dev: $(DEV)  ## the same, with the tools for tests and style

lock: $(BIN)/python  ## resolve requirements.lock anew: versions and hashes of all dependencies
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --disable-pip-version-check --quiet uv
	$(BIN)/python scripts/lock.py --uv $(VENV)/lock/bin/uv

dist: $(DEV)  ## build a wheel into dist/
	$(BIN)/python -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist

wheels: $(BIN)/python  ## build a wheel for each Python and processor into dist/; needs Docker, and emulation for ARM64
	$(BIN)/python -m venv $(VENV)/wheels
	$(VENV)/wheels/bin/python -m pip install --disable-pip-version-check --quiet "cibuildwheel>=4,<5"
	$(VENV)/wheels/bin/cibuildwheel --platform linux --output-dir dist

clean:    ## remove the environment, build products and caches
	rm -rf $(VENV) build dist *.egg-info kernels/native/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo.html

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("bough needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(USE): | $(BIN)/python
	$(PIP) --editable .
	@rm -f $(VENV)/.stamp-use-*; touch $@

# torch comes first, by itself: which build fits is a question of the machine, not of pyproject.toml. What is installed
# for tests serves users, too: bough is compiled once.
$(DEV): | $(BIN)/python
	$(BIN)/python scripts/install_torch.py
	$(PIP) --editable '.[dev]'
	@rm -f $(VENV)/.stamp-*; touch $(USE) $@

$(VENV)/triton-oldest: | $(DEV)
	@rm -rf $@.part
	$(PIP) --no-deps --target $@.part triton==3.6.0
	@mv $@.part $@
