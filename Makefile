# make demo    the whole job on this machine: environment, server, golden prompts, shards, certificate, report
# make test    the environment, then the whole suite, real server included
# make check   ruff and mypy
# make lock    pins the requirements anew from pyproject.toml
# make matrix  measures what the installed SGLang loses, for the reference pages
# make docs    writes the reference pages from the registries
# make clean   takes away what these made

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
BIN := .venv/bin
PYTEST_ARGS ?=
DEMO_ARGS ?=

# Byte code that an import makes is worth keeping: the server starts often.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lock docs matrix clean env help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make /make /p' Makefile

env:
	@.ci/setup "$(PYTHON)"

demo: env
	@$(BIN)/shardgate demo $(DEMO_ARGS)

test: env
	@.ci/browser
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Without annotations and without the index: the lock says the same wherever it was made.
LOCK = $(BIN)/uv pip compile pyproject.toml --python $(BIN)/python --no-emit-index-url --no-annotate --no-header --quiet
lock: env
	@$(LOCK) --extra cpu --extra dev --output-file requirements/cpu.txt
	@$(LOCK) --constraint requirements/cpu.txt --output-file requirements/base.txt

# The pages that list losses, formats and rules are written from the registries.
docs: env
	@$(BIN)/python -m harness.report.reference docs

# What the installed SGLang's parsers lose, measured anew; some minutes.
matrix: env
	@mkdir -p fixtures/matrix
	@$(BIN)/shardgate matrix --examples 40 --json > fixtures/matrix/.new
	@mv fixtures/matrix/.new fixtures/matrix/sglang-$$($(BIN)/python -c "import importlib.metadata as m; print(m.version('sglang'))").json
	@$(MAKE) --no-print-directory docs

clean:
	rm -rf .venv .venv-base .venv-trainers .env-stamp* runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find contracts harness tests -name __pycache__ -type d -prune -exec rm -rf {} +
