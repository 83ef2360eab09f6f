# One entry for everything that a person or the CI does here. `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
GPUS   ?= simulated
ARGS   ?=
PYTEST := $(BIN)/python -m pytest
# Two at once, since most tests wait for processes; a file's tests stay together and share what it builds once.
TWO    := -n 2 --dist loadfile
THREE  := -n 3 --dist loadfile # for the slow tests, which mostly wait
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The simulated demo polls fast, so that nobody waits; real GPUs get the careful defaults.
DEMO_simulated := --simulate 4 --max-checks 2 --poll-interval 0.5
DEMO_real      :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run esd-demo quick check fix test-slow test-gpu test-peers bless pictures bench

help: ## list the targets
	@echo "usage: make TARGET [PYTHON=python3.12] [ARGS=...]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.base ## run examples/commands.txt on 4 simulated GPUs (GPUS=real: on this box's own)
	@mkdir -p gpusched-runs
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/gpusched run examples/commands.txt $(DEMO_$(GPUS)) \
	  --log-dir "gpusched-runs/demo-$$(date +%Y%m%d-%H%M%S)" $(ARGS)

esd-demo: $(VENV)/.dev ## analyse a small list of random models on simulated GPUs
	@rm -rf gpusched-runs/esd-models && mkdir -p gpusched-runs
	$(BIN)/python -m tests.support.tiny_models gpusched-runs/esd-models
	cd gpusched-runs/esd-models && HF_HUB_OFFLINE=1 "$(CURDIR)/$(BIN)/gpusched" esd --model-list atlas.csv --plots \
	  $(DEMO_simulated) $(ARGS); test $$? = 1 # two of its six models are broken

quick: $(VENV)/.dev ## format, lint, types and the fast tests: for every change
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy
	$(PYTEST) -q $(TWO) -m "not slow and not soak and not gpu and not peers" $(ARGS)

check: $(VENV)/.dev ## format, lint, types, docs and tests: what the CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy
	$(PYTEST) -q $(THREE) -m "not gpu and not soak and not peers" $(ARGS)

fix: $(VENV)/.dev ## format the code and repair what lint can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(VENV)/.s3 ## the slow tests, the ones that take minutes included
	$(PYTEST) -m "(slow or soak) and not gpu and not peers" --hypothesis-profile default $(ARGS)

test-gpu: $(VENV)/.dev ## the tests that need a real GPU
	$(PYTEST) -m gpu $(ARGS)

test-peers: $(VENV)/.peers ## compare the spectral analysis with WeightWatcher (downloads 85 MB more)
	$(PYTEST) -m peers $(ARGS)

bless: $(VENV)/.dev ## rewrite the golden files and the generated part of the docs
	GPUSCHED_BLESS=1 $(PYTEST) -q -m "not soak and not gpu and not peers" $(ARGS)

pictures: $(VENV)/.dev ## remake the pictures of the README by a run on simulated GPUs (the report needs chromium)
	$(BIN)/python -m tests.support.pictures

bench: $(VENV)/.base ## measure, as ratios within one run
	$(BIN)/python -m bench.run $(ARGS)

# Three stamps: running needs only the base dependencies, and only comparing needs the peers. A .venv whose Python is
# gone is made anew.
$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: $(PYTHON) is not Python 3.10 or newer; name one, e.g. make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "make: $(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)" >&2; \
	  exit 1; }
	$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base constraints.txt
	$(PIP) install --constraint constraints.txt --editable '.[cluster,dev,esd,hub,merge,notify,parquet,quant,top,tune,upload,wandb,web]'
	@touch $@

$(VENV)/.s3: $(VENV)/.dev
	$(PIP) install --constraint constraints.txt --editable '.[s3]'
	@touch $@

$(VENV)/.peers: $(VENV)/.dev
	$(PIP) install --constraint constraints.txt --editable '.[dev,esd,hub,merge,peers,quant]'
	@touch $@
