# Each target does all of its own set-up; the second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS ?= dev  # what the first run installs: dev,e2e,cluster is all that the tests can use
# Many tests wait, for a browser or a server: one process more than there are cores, up to four.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")

# Where Python is told to keep no bytecode, each of the hundreds of processes that tests begin would compile
# all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-all lint gate arm bench e2e cluster docker clean

serve: $(READY)  ## serve the shipped models on http://127.0.0.1:8000
	$(BIN)/scanline serve

test: $(READY)  ## run every day's tests, a quarter of an hour
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(TESTS)

test-all: TESTS = --broad  ## the same for more instruction sets, kernels, clusters and attacks, some minutes more
test-all: test

lint: $(READY)  ## the gates: ruff and mypy, both strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

gate: $(READY)  ## compile every kernel for sm_80, sm_90 and sm_100 (or ARCH): minutes, no GPU
	$(BIN)/python -m scanline.kernels.cuda.compile_gate $(if $(ARCH),--arch $(ARCH))

arm: $(READY)  ## test the native decoder's NEON code in qemu, where it and a cross-compiler are
	$(BIN)/python -m pytest -rs tests/kernels/native/arm

bench: $(READY)  ## time every decoder that runs here
	$(BIN)/scanline bench

e2e: $(READY)  ## install what the page's tests and schemathesis need; a browser must be there
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,e2e]'

cluster: $(READY)  ## install Ray, with which a cluster's tests run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,cluster]'

docker:
	docker compose up --build

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@# Modules are compiled as they are imported: most never are.
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[$(strip $(EXTRAS))]'
	mkdir -p $(VENV)/source/scanline  # the package's layout, for mypy
	ln -sfn $(CURDIR)/kernels $(CURDIR)/model $(CURDIR)/service $(VENV)/source/scanline
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
