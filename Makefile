# Needs make and Python 3.11 or newer; everything else goes into .venv.
#
#   make demo    send the sample customers their digests, twice, and show the ledger
#   make test    all tests, on SQLite and on PostgreSQL
#   make lint    style, types and import contracts
#   make docs    write the pages that are drawn from the code
#   make lock    write the requirements*.txt files anew from pyproject.toml (UPGRADE=1 takes newer versions)
#   make clean   remove everything that these targets made

SHELL = /bin/sh
VENV = .venv
BIN = $(VENV)/bin
PIP = PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 $(BIN)/python -m pip
# Each worker starts a PostgreSQL of its own; a file's tests stay together for the sake of shared fixtures. In the order
# of the folders the slow files come first; xdist's own order, by the number of tests, would leave them to the end.
PYTEST_ARGS = -n logical --dist loadscope --no-loadscope-reorder

.PHONY: demo test lint style types contracts validate docs lock clean

demo: $(VENV)/.runtime
	$(BIN)/digest demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: style types contracts

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

docs: $(VENV)/.runtime
	$(BIN)/python docs/generate.py

# An instance of its own: validating must not depend on, or write into, the developer's.
validate: $(VENV)/.runtime
	home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && \
	DAGSTER_HOME="$$home" $(BIN)/dagster definitions validate -w workspace.yaml

# Checked by hash, then the project itself without looking for anything: its build backend is among the pinned packages.
# Editable, so that an edited file is what runs next. That the built wheel holds every file is a stage of .ci/run.
INSTALL_PROJECT = $(PIP) install --quiet --no-deps --no-build-isolation --editable .

$(VENV)/.runtime: requirements.txt pyproject.toml $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements.txt
	$(INSTALL_PROJECT)
	touch $@

# Holds the runtime's packages too, in the same versions, hence both stamps.
$(VENV)/.dev: requirements-dev.txt pyproject.toml $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements-dev.txt
	$(INSTALL_PROJECT)
	touch $(VENV)/.runtime $@

# `PYTHON=python3.12 make ...` picks one; otherwise the first on PATH that is new enough.
$(BIN)/python:
	@for python in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV) && exit 0; \
	    echo "creating the environment failed; on Debian and Ubuntu install python3-venv first" >&2; exit 1; \
	  fi; \
	done; \
	echo "Python 3.11 or newer is needed; tried: $${PYTHON:-python3 python3.13 python3.12 python3.11}." >&2; \
	echo "Name another with PYTHON=/path/to/python make ..." >&2; \
	exit 1

# Hashes of every file of each version, so that Linux and macOS, x86_64 and ARM, can install from them. The oldest
# Python decides the versions: run it with 3.11. Extras stay (`gql[requests]`), pip asks for them when it checks hashes.
PIP_COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --no-strip-extras \
  --build-deps-for=wheel --build-deps-for=editable \
  --no-header --no-emit-options
LOCK_HEADER = '\# Written by `make lock` from pyproject.toml: edit that file, not this one.'

# The runtime's file is the other one with what it doesn't need taken out, so the two never name different versions.
lock: $(VENV)/.dev
	$(PIP_COMPILE) $${UPGRADE:+--upgrade} --extra celery --extra dg --extra ses --extra test --extra dev --output-file requirements-dev.txt pyproject.toml
	cp requirements-dev.txt requirements.txt
	$(PIP_COMPILE) --output-file requirements.txt pyproject.toml
	cp requirements-dev.txt deploy/requirements.txt
	$(PIP_COMPILE) --extra celery --extra kubernetes --extra ses --output-file deploy/requirements.txt pyproject.toml
	for file in requirements.txt requirements-dev.txt deploy/requirements.txt; do \
	  { echo $(LOCK_HEADER); cat "$$file"; } >"$$file.new" && mv "$$file.new" "$$file"; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .dagster_state .digest .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache test-artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
