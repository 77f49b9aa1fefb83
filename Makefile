# Every target installs what it needs; later runs start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
RELEASING := $(VENV)/.releasing
UPGRADE ?= --upgrade
# Optional dependencies that tests use; dev,e2e,cluster is everything that they can use.
EXTRAS ?= dev
# Paths in here are relative, so that the checkout's own path may contain any character.
PIP_INSTALL = $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable
# Many tests wait for a browser or a server, so use one process more than there are cores, up to four.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# Without cached bytecode, each of the hundreds of processes that tests start would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install serve test test-rest test-all lint gate arm bench e2e cluster docker lock release clean

install: $(INSTALLED)  ## install what serving and training need, without the tests' packages

serve: $(INSTALLED)  ## serve the shipped models on http://127.0.0.1:8000
	$(BIN)/scanline serve

test: $(READY)  ## tests for everyday changes: five to ten minutes, no browser, no cluster
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
	$(PIP_INSTALL) '.[dev,e2e]'

cluster: $(READY)  ## install Ray, which the cluster's tests need
	$(PIP_INSTALL) '.[dev,cluster]'

docker:
	docker compose up --build

lock: $(RELEASING)  ## pin the newest versions that pyproject.toml allows, for the image; UPGRADE= keeps pins
	@# An index or a build of torch chosen for this machine would leave out CUDA's packages.
	env -u UV_INDEX -u UV_TORCH_BACKEND $(BIN)/uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock' $(UPGRADE) --extra cluster --extra gpu --extra otel pyproject.toml \
	  --output-file requirements.lock
	@# CPU and CUDA builds of torch are different files, so torch gets no hash.
	awk '/^torch==/ {sub(/ \\$$/, ""); print; skip = 1; next} /^[^ ]/ {skip = 0} !skip' \
	  requirements.lock > requirements.lock.new
	mv requirements.lock.new requirements.lock

release: $(RELEASING)  ## build the source archive, the wheels for Linux and the SBOM into dist/, and test them
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/release

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c "import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit('Scanline needs \
	Python 3.11 or newer, and $(PYTHON) is ' + v + ': name another one, as in make PYTHON=python3.12 serve')"
	$(PYTHON) -m venv $(VENV)
	@# Bytecode is compiled on import, because most modules are never imported.
	$(PIP_INSTALL) .
	touch $@

$(READY): $(INSTALLED)
	$(PIP_INSTALL) '.$(if $(strip $(EXTRAS)),[$(strip $(EXTRAS))])'
	mkdir -p $(VENV)/source/scanline  # the package's layout, for mypy
	ln -sfn ../../../kernels ../../../model ../../../service $(VENV)/source/scanline
	touch $@

$(RELEASING): $(INSTALLED)
	$(PIP_INSTALL) '.[release]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
