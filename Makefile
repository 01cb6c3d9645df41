# nightferry: set-up, demo and checks. Every target works from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test soak check audit fmt clean
.DEFAULT_GOAL := check

# The tests of one server stay together; each stage fails when none of its tests passed (tests/conftest.py). Much of their
# time is waiting for servers: three workers keep two cores busy.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e .
	@# Optional: copies through io_uring where the kernel allows it; threads do without.
	-$(PIP) --pre uring-api
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m demo

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 -m 'not soak' tests/unit tests/property

test: $(VENV)/.dev
	$(BIN)/python -m tests.servers.install
	$(MAKE) check
	$(PYTEST) --durations 10 -m 'not soak' tests/contract tests/golden tests/integration tests/e2e

soak: $(VENV)/.dev
	$(BIN)/python -m tests.servers.install
	$(PYTEST) --durations 10 -m soak tests

# Asks PyPI and OSV about every installed package: only where the network reaches them, so not a part of `check`.
audit: $(VENV)/.dev
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --skip-editable

fmt: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo-site .mypy_cache .ruff_cache .pytest_cache
