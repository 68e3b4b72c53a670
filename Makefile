.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint format bench docs clean
PYTHON ?= python3
BIN := .venv/bin
# Tests run in one process for each core, so each process computes on one.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/ready  ## build .venv with everything that development needs

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("unsmooth needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/ready  ## train, diagnose and compare a small ViT on digits, plain and with remedies
	$(BIN)/unsmooth demo

test: lint  ## lint, type-check, and run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-fast: .venv/ready  ## the tests that take seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow"

lint: .venv/ready  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready  ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready  ## measure cost: remedies, a diagnosis and training, against the plain host, a forward pass, a bare loop
	$(BIN)/python benchmarks/remedies.py
	$(BIN)/python benchmarks/vitals.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/adder_ops.py

docs: .venv/ready  ## run every pair of host and remedy, and write the generated docs
	$(BIN)/python -m tools.generate

clean:  ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
