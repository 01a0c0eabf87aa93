# Two commands do everything on a fresh machine with Python 3.11+: `make search` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install search test lint test-slow clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

search: install
	$(BIN)/advnas experiment toy --preset quick --folder runs/toy-quick

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m 'not slow'

test-slow: install
	$(BIN)/pytest -m slow || test $$? -eq 5  # 5: there are none yet

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
