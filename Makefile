# Every target sets itself up: the first run creates .venv, later runs download nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(READY) ## train three losses on glyphs and write runs/demo/report.html
	$(BIN)/softwarp demo

test: $(READY) ## run the fast tests
	$(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal -m "not slow"

test-slow: $(READY) ## run every test, including the slow ones
	$(BIN)/pytest

check: $(READY) ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## compare speed and memory with peers, as ratios; writes results/benchmark_*.json
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/sharded.py

docs: $(READY) ## write what is generated in docs/ and the README's tables, and build the site in site/
	$(BIN)/python tools/losses_docs.py
	PYTHONPATH=experiments $(BIN)/python tools/readme_tables.py
	$(BIN)/python tools/study_docs.py
	$(BIN)/python tools/paper_docs.py
	$(BIN)/python tools/map_docs.py
	$(BIN)/python tools/recipe_docs.py
	$(BIN)/python tools/cli_docs.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# uv installs in seconds what takes pip minutes; if uv is not available, pip does it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	{ $(BIN)/python -m pip install -q uv && $(BIN)/python -m uv pip install -q --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'; } \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@
