.DEFAULT_GOAL := help
.PHONY: help setup demo test tests test-all test-fast faults lint format bench docs hosts compositions site clean
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Tests run in one process per core, so each process computes with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)
# Tests start dozens of processes: none of them should compile the package again.
export PYTHONDONTWRITEBYTECODE :=

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/ready  ## create .venv with everything that development needs

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("unsmooth needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/ready  ## diagnose, treat and compare a small ViT that does not train
	$(BIN)/unsmooth demo

test: .venv/ready  ## lint, check types and imports, and at the same time run the tests; print the coverage
	@$(MAKE) --no-print-directory --jobs=2 lint tests

tests: .venv/ready
	$(PYTEST) -m "not full" --cov=unsmooth --cov-report=
	@echo "coverage: $$($(BIN)/python -m coverage report --format=total) % of the lines of unsmooth," \
		"by the fast tests, at most three cases of each (law and slow tests are not counted)"

test-all: lint  ## the same with every combination of remedy options and hosts
	$(PYTEST)

test-fast: .venv/ready  ## run the tests that take seconds
	$(PYTEST) -m "not slow and not full"

faults: .venv/ready  ## try to break it, at length: the whole of tests/faults (`make test` runs its short form)
	UNSMOOTH_FUZZ=2000 $(PYTEST) tests/faults

lint: .venv/ready  ## run ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready  ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready  ## measure every cost beside its goal (40 minutes), record it, write the pages, name missed goals
	$(BIN)/python benchmarks/imports.py --rounds 3 --write
	$(BIN)/python benchmarks/remedies.py --rounds 5 --write
	$(BIN)/python benchmarks/seam.py --rounds 40 --compile --write
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/vitals.py --rounds 1 --write
	$(BIN)/python benchmarks/training.py --write
	$(BIN)/python benchmarks/monitor.py --write
	$(BIN)/python benchmarks/adder_ops.py --rounds 5 --write
	$(BIN)/python benchmarks/growth.py --write
	$(BIN)/python benchmarks/profiles.py --write
	$(BIN)/python -m tools.bench_tables
	$(BIN)/python -m tools.generate
	$(BIN)/python -m benchmarks.records

docs: .venv/ready  ## write the generated pages of docs/
	$(BIN)/python -m tools.generate

hosts: .venv/ready  ## run every pair of host and remedy (minutes), record it, and write the pages
	$(BIN)/python -m tools.host_pages
	$(BIN)/python -m tools.other_host_pages
	$(BIN)/python -m tools.generate

compositions: .venv/ready  ## run every pair of remedy and other change (minutes), record it, and write the pages
	$(BIN)/python -m tools.compositions
	$(BIN)/python -m tools.generate

site: .venv/ready  ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

clean:  ## remove .venv, the site and caches
	rm -rf .venv site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
