# Two commands do everything on a fresh machine: `make compare` and `make test`.
# They build .venv once, or use the environment that is active.

ENVIRONMENT := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),.venv)
BIN := $(ENVIRONMENT)/bin
READY := $(ENVIRONMENT)/.tutti-ready
PYTHON ?= python3
TORCH ?= torch==2.13.0

.PHONY: compare test check bench reproduce clean

compare: $(READY)
	$(BIN)/tutti compare

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

# make reproduce NAME=ring-lenet ARGS=--quick
reproduce: $(READY)
	$(BIN)/tutti reproduce $(NAME) $(ARGS)

bench: $(READY)
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/routes.py
	$(BIN)/python benchmarks/overlap.py

# torch first, so that nothing else chooses its build
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENVIRONMENT)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e ".[dev]"
	touch $@

clean:
	rm -rf .venv runs build dist .mypy_cache .ruff_cache .pytest_cache
