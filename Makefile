# `make` alone lists the targets.
# Needs Python 3.11 or newer with venv, and git; everything else goes into .venv at the versions of constraints.txt.

PYTHON ?= $(shell command -v python3.11 || echo python3)
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check install --constraint constraints.txt
SOURCES := $(wildcard corollout benchmarks examples tests)

.DEFAULT_GOAL := help
.PHONY: help install demo test prove lint types bench docs format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed ## create .venv with the package and its developer tools

demo: install ## run the demonstration (under five minutes); results go to demo/
	@$(BIN)/corollout demo --out demo

test: lint types ## lint, types, then the tests, with a quick share of every proof
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

prove: $(VENV)/.installed-prove ## all proofs in full: reliability, statistics, mutants, fuzzing (some hours); counts go to results/reliability
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability --jobs $(WORKERS) --out results/reliability
	@COROLLOUT_FUZZ=100000 COROLLOUT_CHECKED_CALLS=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --timeout 0 -m "prove or not prove"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

lint: install ## check style and formatting
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

types: install ## check types
	@$(BIN)/basedpyright $(SOURCES)

bench: install ## run the side-by-side measurements
	@$(BIN)/python -m benchmarks

docs: $(VENV)/.installed-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "The documentation is in site/index.html."

format: install ## rewrite the sources in the project's format
	@$(BIN)/ruff check --fix-only $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

clean: ## remove .venv, caches and generated output
	@rm -rf $(VENV) demo site dist build .pytest_cache .ruff_cache .hypothesis
	@find $(SOURCES) -type d -name __pycache__ -prune -exec rm -rf {} +

# The build backend comes from constraints.txt too, hence no build isolation: pip would fetch its newest version.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "corollout needs Python 3.11 or newer, but '$(PYTHON)' is missing or older: name one with 'make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3.11'." >&2; \
	  exit 1; }
	@echo "Setting up $(VENV) (a minute or two the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/.installed-prove: $(VENV)/.installed
	@echo "Adding the fuzzer to $(VENV) ..."
	@$(PIP) --no-build-isolation --editable '.[prove]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Adding the documentation tools to $(VENV) ..."
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@
