# Each target does all of its own set-up; the second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: serve test lint gate arm bench e2e docker clean

serve: $(READY)  ## serve the shipped models on http://127.0.0.1:8000
	$(BIN)/scanline serve

test: $(READY)  ## run every test that this machine can
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: $(READY)  ## the gates: ruff and mypy, both strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

gate: $(READY)  ## compile every Triton kernel for sm_80, sm_90 and sm_100: minutes, and no GPU
	$(BIN)/python -m scanline.kernels.cuda.compile_gate

arm: $(READY)  ## test the native decoder's NEON code in qemu, where it and a cross-compiler are
	$(BIN)/python -m pytest -rs tests/arm

bench: $(READY)  ## time every decoder that runs here
	$(BIN)/scanline bench

e2e: $(READY)  ## install what the page's tests and schemathesis need; a browser must be there
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,e2e]'

docker:
	docker compose up --build

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	mkdir -p $(VENV)/source/scanline  # the package's layout, for mypy
	ln -sfn $(CURDIR)/kernels $(CURDIR)/model $(CURDIR)/service $(VENV)/source/scanline
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
