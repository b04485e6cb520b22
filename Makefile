# Each target does its own set-up. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed

# What needs the engine waits for it most of the time: the rest of the tests runs meanwhile, and its own report follows.
define pytest
	@report=$$(mktemp); trap 'rm -f $$report' EXIT; \
	$(BIN)/pytest -m "engine and $(1)" > $$report 2>&1 & engine=$$!; \
	trap 'kill -INT $$engine' INT TERM; \
	status=0; $(BIN)/pytest -m "not engine and $(1)" || status=$$?; \
	wait $$engine || status=$$?; cat $$report; exit $$status
endef

.PHONY: help setup engine demo test soak long lint types format bench clean system
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(STAMP) engine ## build .venv (the console) and .engine (a GPU host's Python, with SGLang)

$(STAMP): pyproject.toml | system
	@echo "Installing the console into $(VENV)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable '.[dev]' 2> >(grep -v '^WARNING' >&2)
	@touch $@

engine: | system ## build .engine, once for each content of its recipe
	@PYTHONPATH=console:agents $(PYTHON) -B -m kimi_console.demo.engine --link .engine > /dev/null

system:
	@PYTHON=$(PYTHON) .ci/system

demo: setup ## the whole job on this machine: no GPU, no SSH, no download of weights
	@$(BIN)/kimi-console demo

test: setup lint types ## everything but `make soak` and `make long`
	$(call pytest,not soak and not long)

soak: setup ## hundreds of crashes of writers and servers; CI runs it after `make test`
	$(call pytest,soak)

long: setup ## more faults of real servers than CI has time for
	$(call pytest,long)

lint: $(STAMP) ## style, and which layer may import which
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

format: $(STAMP) ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

bench: $(STAMP) ## measure the budgets on this machine
	@left=; for bench in tests/bench/*.py; do $(BIN)/python $$bench || left+=" $$bench"; done; \
	test -z "$$left" || { echo "make bench: these did not run to their end here:$$left" >&2; exit 1; }

clean: ## remove what make built here; built engines stay in the user's cache
	@rm -rf $(VENV) .engine dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find console agents tests -name __pycache__ -type d -prune -exec rm -rf {} +
