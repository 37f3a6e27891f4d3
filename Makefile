# make help | setup | demo | test | test-fast | coverage | faults | fuzz | fuzz-models | lint | hooks | bench | bench-memory | evidence | golden | clean
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
BASE_PYTHON ?= $(shell command -v python3.11 || command -v python3)
# the suite mostly compiles: one worker per core of a small machine; a file stays with one worker, for what its tests share
PYTEST_FLAGS ?= -n 2 --dist loadfile --no-loadscope-reorder
COVERAGE_FLAGS ?= -n 2 --dist worksteal
MINUTES ?= 5
PIP_OPTIONS ?=

.PHONY: help setup demo test test-fast coverage faults fuzz fuzz-models lint hooks bench bench-memory evidence golden clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

setup: $(STAMP)  ## make .venv with the package, its pins and the developer tools

$(STAMP): pyproject.toml
	@[ -n "$(BASE_PYTHON)" ] || { echo "no python3.11 or python3 found; install Python 3.11 or run: make BASE_PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(BASE_PYTHON)" -c 'import sys; v = sys.version_info; v[:2] == (3, 11) or sys.exit(f"{sys.executable} is Python {v[0]}.{v[1]}; gfcompile needs 3.11. Install it, or run: make BASE_PYTHON=/path/to/python3.11")'
	[ -x $(PY) ] || "$(BASE_PYTHON)" -m venv $(VENV)
	$(PY) -m pip install --quiet $(PIP_OPTIONS) -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## pretrain, compile and fine-tune on shipped images (under three minutes)
	$(PY) examples/fashion/demo.py

test: $(STAMP)  ## the whole suite; `make coverage` has the rest of the operators and definitions
	$(PY) -m pytest -m "not coverage" $(PYTEST_FLAGS)

test-fast: $(STAMP)  ## the suite without the tests marked slow
	$(PY) -m pytest -m "not slow and not coverage" $(PYTEST_FLAGS)

coverage: $(STAMP)  ## every operator by itself, then every definition of tests/models, against PyTorch (an hour or more)
	$(PY) -m pytest -m coverage $(COVERAGE_FLAGS)
	$(PY) -m tests.coverage

faults: $(STAMP)  ## put deliberate faults into a copy, one by one, and count those that the tests notice (half an hour)
	$(PY) -m tests.faults $(NAMES)

fuzz: $(STAMP)  ## look for files that crash the C parsers and the Python loaders, MINUTES=5 for all of them together
	$(PY) -m tests.fuzz --minutes $(MINUTES)

fuzz-models: $(STAMP)  ## N random networks against float64 PyTorch, from a new seed or from SEED
	$(PY) -m tests.fuzz.models --count $(or $(N),20) $(if $(SEED),--seed $(SEED))

lint: $(STAMP)  ## ruff (rules and format), mypy, spelling, the order of the rooms
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/codespell
	$(VENV)/bin/lint-imports

hooks: $(STAMP)  ## lint before every commit from now on
	$(VENV)/bin/pre-commit install

bench: $(STAMP)  ## every benchmark against its peers, into docs/benchmarks.json and .md (half an hour, on a quiet machine)
	$(PY) -m benchmarks.suite

bench-memory: $(STAMP)  ## planned memory against what PyTorch takes and keeps
	$(PY) -m benchmarks.memory

evidence: $(STAMP)  ## fine-tuning on Fashion-MNIST with every method, into docs/evidence.json and .md (half an hour; goes on where it was)
	$(PY) -m benchmarks.evidence.suite

golden: $(STAMP)  ## rewrite the golden files; review the diff like code
	GF_UPDATE_GOLDEN=1 $(PY) -m pytest tests/passes tests/report/test_json_form.py $(PYTEST_FLAGS)

clean:  ## remove what the other targets wrote, .venv included
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
