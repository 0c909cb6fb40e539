# The two commands a newcomer needs are `make up` and `make test`; both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Idle OpenMP threads sleep instead of spinning: tests share few cores with the servers that they start.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup up test test-pages test-kernels test-clients test-clients-slow drafters check format clean

help: ## What each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 20

setup: $(VENV)/.installed ## Install everything into .venv, once

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v[:2] < (3, 14))' || \
		{ echo "Kadence needs Python 3.11 to 3.13; this is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a few minutes, once"
	$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

up: setup ## Database, endpoint and dashboard in the foreground; Ctrl-C stops all
	@$(BIN)/kadence up $(ARGS)

# The end-to-end tests first and alone, since they time real servers; then the rest, a process for each of two cores.
test: setup ## The test suite that users run
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest -m e2e
	$(BIN)/python -m pytest -m "not e2e and not clients and not pages and not slow" --numprocesses 2 --dist loadfile
else
	$(BIN)/python -m pytest $(ARGS)
endif

test-pages: setup ## Every page of the dashboard in Chromium: its figures against the commands', keyboard, names, empty states
	$(BIN)/python -m pytest -m pages $(ARGS)

# Other people's clients, each in an environment of its own: their versions exclude each other's and ours.
CLIENTS := .venv-clients

$(CLIENTS)/%/.installed: tests/clients/requirements-%.txt tests/clients/constraints-%.txt
	$(PYTHON) -m venv $(CLIENTS)/$*
	@echo "installing into $(CLIENTS)/$*: a minute or two, once"
	$(CLIENTS)/$*/bin/pip install -qq --disable-pip-version-check --constraint tests/clients/constraints-$*.txt \
		--requirement tests/clients/requirements-$*.txt
	@touch $@

test-clients: setup $(CLIENTS)/clients/.installed $(CLIENTS)/litellm/.installed ## OpenAI, LangChain, LiteLLM and Schemathesis against a real endpoint
	$(BIN)/python -m pytest -m "clients and not slow" tests/clients $(ARGS)

test-clients-slow: setup $(CLIENTS)/clients/.installed $(CLIENTS)/aiperf/.installed $(CLIENTS)/guidellm/.installed ## AIPerf, GuideLLM, and Schemathesis for ten minutes
	KADENCE_SCHEMATHESIS_S=600 $(BIN)/python -m pytest -m "clients and (slow or schemathesis)" tests/clients $(ARGS)

drafters: setup ## Train the shipped drafters anew, into OUT (drafters): hours
	scripts/train_shipped_drafters.sh $(or $(OUT),drafters)

test-kernels: setup ## Compile every kernel for every chip, compare with benchmarks/kernels_resources.csv; native ones for older CPUs
	$(BIN)/python -m benchmarks.kernels_resources
	$(BIN)/python -m pytest -m slow tests/kernels

check: setup ## Lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what setup and tests made (not the models in ~/.cache/kadence, not the ledger in .kadence)
	rm -rf $(VENV) $(CLIENTS) artifacts build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
