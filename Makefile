# nightferry: set-up, demo and checks. Every target works from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check fmt clean
.DEFAULT_GOAL := check

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
	$(BIN)/python -m pytest -q -n 2 tests/unit tests/property

test: $(VENV)/.dev
	$(BIN)/python -m tests.servers.install
	$(MAKE) check
	$(BIN)/python -m pytest -n 2 --dist loadgroup --durations 10 tests/contract tests/golden tests/integration tests/e2e

fmt: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo-site .mypy_cache .ruff_cache .pytest_cache
