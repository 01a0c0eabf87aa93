# Two commands do everything on a fresh machine with Python 3.11+: `make search` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install search test lint docs test-slow test-browser clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

search: install
	$(BIN)/advnas search

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The result tables of the pages from docs/results/*.json, and the API pages in docs/api from the docstrings.
docs: install
	$(BIN)/python docs/make_tables.py
	$(BIN)/python docs/make_api.py

test: lint
	$(BIN)/pytest -m 'not slow' -n logical --maxprocesses 2

# The page on common practice runs with the real packages here.
test-slow: .venv/integrations
	$(BIN)/pytest -m slow -n logical --maxprocesses 2

.venv/integrations: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[integrations]'
	touch $@

# `make test` renders the reports too where it finds a Chromium; this installs Debian's first.
test-browser: install
	command -v chromium || (apt-get update && apt-get install --yes --no-install-recommends chromium)
	$(BIN)/pytest tests/reports/test_browser.py

clean:
	rm -rf .venv runs docs/api .pytest_cache .mypy_cache .ruff_cache
