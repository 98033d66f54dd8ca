# Two commands: `make demo` and `make test`. Each sets up its own virtual environment on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-all test-keras browser check format bench docs clean

help:
	@echo "make demo    set up, then train an LSTM through 512 steps, plainly and inside 4 MiB (the main job)"
	@echo "make test    set up, then run every check: format, lint, types, layers, tests"
	@echo "make test-all  the same, with whole matrices of tests"
	@echo "make test-keras  the matrix of Keras on PyTorch, JAX and TensorFlow, which it installs"
	@echo "make format  rewrite the code in house format"
	@echo "make docs    build the site of the documentation into site/, strictly"
	@echo "make bench   time planning against its nearest peer, and gradients against plain autograd"

$(VENV)/.core: pyproject.toml
	@echo "== setting up $(VENV) with the core dependencies (numpy, autograd, rich)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core pyproject.toml
	@echo "== adding the development tools (ruff, mypy, import-linter, pytest, hypothesis, playwright, torch, transformers, jax, peers)"
	$(BIN)/python -m pip install --quiet --no-compile --group dev
	@touch $@

demo: $(VENV)/.core
	@echo "== a character LSTM through 512 steps: plain autograd, then remat inside 4 MiB (half a minute)"
	OMP_NUM_THREADS=1 $(BIN)/remat demo --force

# The page is tested in a browser: Debian's chromium, if it is here or can be installed; else these tests are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { echo "== installing chromium for the tests of the page"; \
	       { timeout 300 apt-get install -y --no-install-recommends chromium \
	         || { timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends chromium; }; \
	       } >/dev/null 2>&1; } \
	  || echo "== NO CHROMIUM HERE: the tests of the page in a browser WILL BE SKIPPED"

test: $(VENV)/.dev browser
	@$(MAKE) --no-print-directory -j2 check $(VENV)/.bytecode
	@echo "== tests, one process for each core"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# Whole matrices, of which `make test` runs a representative part.
test-all: $(VENV)/.dev browser
	@$(MAKE) --no-print-directory -j2 check $(VENV)/.bytecode
	@echo "== all tests, one process for each core"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "full or not full" --hypothesis-profile thorough

test-keras: $(VENV)/.dev
	@echo "== adding TensorFlow, and testing Keras on its three backends"
	$(BIN)/python -m pip install --quiet --no-compile --group tensorflow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "full or not full" tests/layers tests/cli/test_lstm_keras.py

# Of 12,000 files that pip would compile to bytecode, tests import a part: that is compiled here, beside the checks.
$(VENV)/.bytecode: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true
	@touch $@

check: $(VENV)/.dev
	@echo "== format and lint"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo "== types"
	$(BIN)/mypy
	@echo "== layers"
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.docs: $(VENV)/.core pyproject.toml
	@echo "== adding mkdocs-material and mkdocstrings"
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "== site/index.html is the documentation; it needs no network and no server"

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/report_page.py
	$(BIN)/python benchmarks/rng_snapshot.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/numpy_lstm.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/older_loops.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torch_loops.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/segments.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torch_chains.py gpt
	$(BIN)/python benchmarks/jax_loops.py
	$(BIN)/python benchmarks/jax_programs.py

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
