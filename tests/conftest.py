"""Fixtures and helpers of all tests: tolerances, small networks, seeds and the real data sets."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scanline.kernels.native.build import DECODER, TRAINING, NativeBuildError, load_build
from scanline.kernels.native.cpu import cpu_isas
from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer

if TYPE_CHECKING:
    import httpx

# Tolerances for two computations of the same quantity, by the less precise of their dtypes. They do
# not depend on the environment, and failing comparisons are not retried.
TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 1e-2},
    # Integer products with one scale per row.
    torch.int16: {"rtol": 2e-3, "atol": 2e-3},
    torch.int8: {"rtol": 2e-1, "atol": 5e-2},
}

ROOT = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)  # the tensors are too small for a second thread
# Each HTTP client parses a certificate file completely, but reads a folder only on demand.
os.environ.pop("SSL_CERT_FILE", None)
os.environ.setdefault("SSL_CERT_DIR", os.fspath(ROOT / "tests"))


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare shapes and values within ``TOLERANCES[dtype]``; the default is ``actual.dtype``."""
    allowed = TOLERANCES[dtype or actual.dtype]
    torch.testing.assert_close(
        actual, expected, check_dtype=False, rtol=allowed["rtol"], atol=allowed["atol"]
    )


def tiny_config(**fields: Any) -> ModelConfig:
    """Return the config of a network of 5 × 4 pixels, with ``fields`` replaced."""
    small = ModelConfig(height=5, width=4, n_layers=2, n_heads=2, d_model=16, d_ff=24)
    return replace(small, **fields)


def random_network(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64
) -> LinearTransformer:
    """Return a network with random parameters, including those that are initialised to 0 or 1."""
    return copy.deepcopy(_random_network(config, seed, dtype))


@functools.lru_cache(maxsize=64)  # many tests use the same few networks
def _random_network(config: ModelConfig, seed: int, dtype: torch.dtype) -> LinearTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = LinearTransformer(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise.to(dtype))
    return network


def random_canvas(config: ModelConfig, rows: int) -> Tensor:
    """Return ``rows`` images of random values: uint8 ``[rows, T, C]``."""
    values = np.random.default_rng(0).integers(
        0, 256, (rows, config.pixels, config.channels), np.uint8
    )
    return torch.from_numpy(values)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that ``make test-all`` uses."""
    parser.addoption("--broad", action="store_true", help="also run the tests marked broad")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of ``tests/page``."""
    if ROOT / "tests" / "page" in item.path.parents:
        item.add_marker("page")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked broad; workers start the longest tests first, so none ends with one."""
    if not config.getoption("--broad"):
        broad = [item for item in items if item.get_closest_marker("broad")]
        items[:] = [item for item in items if not item.get_closest_marker("broad")]
        config.hook.pytest_deselected(items=broad)
    if hasattr(config, "workerinput"):  # this process is one of pytest-xdist's workers
        items.sort(key=_expected_time, reverse=True)


def _expected_time(item: pytest.Item) -> float:
    """Return a test's own time limit if it has one, else 1 for a slow test and 0 for another."""
    limit = item.get_closest_marker("timeout")
    return limit.args[0] if limit else float(item.get_closest_marker("slow") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Limit the time of a teardown, which a test's own timeout does not cover after a failure."""
    faulthandler.dump_traceback_later(300, exit=True, file=2)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that no garbage collection walks through thousands of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fixed_seed_and_log_level() -> Iterator[None]:
    """Run every test with the same seed and log level, so that a failure repeats when run alone."""
    torch.manual_seed(0)
    level = logging.root.level
    yield
    logging.root.setLevel(level)  # a server changes it


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Restore SIGHUP's default action, also for child processes and under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def restored_interpreter() -> Iterator[None]:
    """Restore the interpreter settings that a serving process changes."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all of pytest-xdist's workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set ``SCANLINE_CACHE`` to a folder that holds only the compiled native libraries."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for source in (DECODER, TRAINING):
        with contextlib.suppress(NativeBuildError):  # without a compiler
            built = Path(load_build(source=source)._name)
            (folder / built.name).symlink_to(built)
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    return folder


def isa_params(isas: Sequence[str]) -> list[Any]:
    """Return ISA parameters: this CPU's best, AVX2 and portable; the others are marked broad.

    If ``SCANLINE_ISA`` is set, it is the only one.
    """
    if chosen := os.environ.get("SCANLINE_ISA"):
        isas = [isa for isa in isas if isa == chosen]
    usual = (cpu_isas()[0], "avx2", "portable")
    return [pytest.param(i, marks=() if i in usual else pytest.mark.broad, id=i) for i in isas]


def parametrize_partly_broad(
    fixture: str,
    values: Iterable[Any],
    names: str,
    cases: Mapping[str, object],
    is_broad: Callable[[str, str], bool],
) -> pytest.MarkDecorator:
    """Parametrize a fixture and ``names`` with all combinations, and mark some of them broad.

    Args:
        fixture: The name of the fixture.
        values: Its values: strings, or ``pytest.param`` of one string.
        names: The names of the other parameters, with commas.
        cases: Their value, or a tuple of their values, by the name of the case.
        is_broad: Returns True if the fixture's value and a case are marked broad together.
    """
    params = []
    for one in values:
        value, marks = (one, ()) if isinstance(one, str) else (one.values[0], one.marks)
        for name, case in cases.items():
            arguments = case if isinstance(case, tuple) else (case,)
            broad = [pytest.mark.broad] if is_broad(value, name) else []
            params.append(
                pytest.param(value, *arguments, marks=[*marks, *broad], id=f"{value}-{name}")
            )
    return pytest.mark.parametrize(f"{fixture},{names}", params, indirect=[fixture])


def use_fast_build(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile an ISA with -O1, unless it is this CPU's best or AVX2."""
    if isa not in (cpu_isas()[0], "avx2"):
        monkeypatch.setenv("SCANLINE_CXXFLAGS", "-O1")


@contextlib.contextmanager
def read_fifo(path: Path) -> Iterator[list[bytes]]:
    """Make a FIFO with a reader; the yielded list holds the bytes read after the block."""
    read = list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    yield read
    assert path.is_fifo()
    reader.join()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Yield a client of a server with two small models."""
    from tests.service.fixtures import (
        build,
        talking_to,
    )  # a local import, because the GPU machine lacks its packages

    _, app = build()
    with talking_to(app) as opened:
        yield opened


@pytest.fixture
def data_dir() -> Path:
    """Return the folder of the real data sets; skip the test if there is none."""
    named = os.environ.get("SCANLINE_DATA_DIR")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "mnist").is_dir():
        pytest.skip(f"no real data in {folder}: set SCANLINE_DATA_DIR to test with it")
    return folder
