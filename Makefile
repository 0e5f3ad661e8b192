# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow bench lint format clean

demo: $(READY)
	$(BIN)/fewrounds run experiments/demo.toml --output demo-output
	$(BIN)/fewrounds report demo-output

test: $(READY) lint
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal

# What downloads data or takes minutes.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Speeds against plain PyTorch loops (about an hour on two cores, with nothing else running), and the tables and
# charts of docs/performance.md. `benchmarks/peers/run.py` measures other systems the same way.
bench: $(READY)
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/page.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
