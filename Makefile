# Every target installs what it needs; later runs start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Optional dependencies of the first installation; dev,e2e,cluster is everything that tests can use.
EXTRAS ?= dev
# Many tests wait for a browser or a server, so use one process more than there are cores, up to four.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# Without cached bytecode, each of the hundreds of processes that tests start would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-rest test-all lint gate arm bench e2e cluster docker clean

serve: $(READY)  ## serve the shipped models on http://127.0.0.1:8000
	$(BIN)/scanline serve

test: $(READY)  ## tests for everyday changes: about five minutes, no browser, no cluster
	$(PYTEST) -m "not slow and not page and not cluster"

test-rest: $(READY)  ## the other tests that CI runs: slow ones, the page and a Ray cluster
	$(PYTEST) -m "slow or page or cluster"

test-all: $(READY)  ## all tests, on more instruction sets and with every attack
	$(PYTEST) --broad

lint: $(READY)  ## ruff and mypy, both strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

gate: $(READY)  ## compile every CUDA kernel for sm_80, sm_90 and sm_100 (or ARCH); needs no GPU
	$(BIN)/python -m scanline.kernels.cuda.compile_gate $(if $(ARCH),--arch $(ARCH))

arm: $(READY)  ## test the native decoder's NEON code under qemu, if it and a cross-compiler are installed
	$(BIN)/python -m pytest -rs tests/arm

bench: $(READY)  ## time every decoder backend that runs on this machine
	$(BIN)/scanline bench

e2e: $(READY)  ## install the packages of the page's tests and of schemathesis; needs Chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,e2e]'

cluster: $(READY)  ## install Ray, which the cluster's tests need
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,cluster]'

docker:
	docker compose up --build

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@# Bytecode is compiled on import, because most modules are never imported.
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[$(strip $(EXTRAS))]'
	mkdir -p $(VENV)/source/scanline  # the package's layout, for mypy
	ln -sfn $(CURDIR)/kernels $(CURDIR)/model $(CURDIR)/service $(VENV)/source/scanline
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
