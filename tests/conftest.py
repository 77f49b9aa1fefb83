"""Shared by all tests: the one table of tolerances, small networks, seeds, the real data."""

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
from collections.abc import Iterator, Sequence
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

# How far two computations of one thing may differ, by the less precise of their dtypes. Never
# loosened by the environment, never retried.
TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 1e-2},
    # Products of whole numbers, with one scale for each row.
    torch.int16: {"rtol": 2e-3, "atol": 2e-3},
    torch.int8: {"rtol": 2e-1, "atol": 5e-2},
}

ROOT = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)  # tiny tensors: a second thread would only wait
# Of a folder's certificates those asked for are read, of a file's all of them by each HTTP client.
os.environ.pop("SSL_CERT_FILE", None)
os.environ.setdefault("SSL_CERT_DIR", os.fspath(ROOT / "tests"))


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare shapes and values within ``TOLERANCES`` of ``dtype``, by default ``actual``'s."""
    allowed = TOLERANCES[dtype or actual.dtype]
    torch.testing.assert_close(
        actual, expected, check_dtype=False, rtol=allowed["rtol"], atol=allowed["atol"]
    )


def tiny_config(**fields: Any) -> ModelConfig:
    """Give a network of 5 × 4 pixels that runs in milliseconds, changed by ``fields``."""
    small = ModelConfig(height=5, width=4, n_layers=2, n_heads=2, d_model=16, d_ff=24)
    return replace(small, **fields)


def random_network(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64
) -> LinearTransformer:
    """Give a network whose every parameter is random, those that start as 0 or 1 too."""
    return copy.deepcopy(_random_network(config, seed, dtype))


@functools.lru_cache(maxsize=64)  # many tests take the same few
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
    """Give ``rows`` images of random values, uint8 ``[rows, T, C]``."""
    values = np.random.default_rng(0).integers(
        0, 256, (rows, config.pixels, config.channels), np.uint8
    )
    return torch.from_numpy(values)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``make test-all`` ask for the tests that are left out of every day's."""
    parser.addoption("--broad", action="store_true", help="run what is marked broad, too")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slowest, or one process has them left where the others are done."""
    if not config.getoption("--broad"):
        broad = [item for item in items if item.get_closest_marker("broad")]
        items[:] = [item for item in items if not item.get_closest_marker("broad")]
        config.hook.pytest_deselected(items=broad)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Limit what follows a test too: where it failed, its own limits hold no more."""
    faulthandler.dump_traceback_later(300, exit=True, file=2)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave thousands of tests to themselves, which every garbage collection would walk through."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Start a test where the garbage collector leaves nothing to itself."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _as_alone() -> Iterator[None]:
    """Start every test from one seed and log level, so that a failure can be run again alone."""
    torch.manual_seed(0)
    level = logging.root.level
    yield
    logging.root.setLevel(level)  # which a server sets for its process


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let SIGHUP be heard, here and by processes begun meanwhile, under nohup too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def settled() -> Iterator[None]:
    """Put back what a serving process changes in Python itself."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache folder of a test's own, in which there is nothing but the native code."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for source in (DECODER, TRAINING):
        with contextlib.suppress(NativeBuildError):  # no compiler is here
            built = Path(load_build(source=source)._name)
            (folder / built.name).symlink_to(built)
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    return folder


def some_of(isas: Sequence[str]) -> list[Any]:
    """Give ISAs to test: this CPU's best, what most have, and none; the others broadly."""
    usual = (cpu_isas()[0], "avx2", "portable")
    return [pytest.param(i, marks=() if i in usual else pytest.mark.broad, id=i) for i in isas]


def build_sooner(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an ISA built with less care, unless it is this CPU's or what most CPUs have."""
    if isa not in (cpu_isas()[0], "avx2"):
        monkeypatch.setenv("SCANLINE_CXXFLAGS", "-O1")


@contextlib.contextmanager
def read_fifo(path: Path) -> Iterator[list[bytes]]:
    """Make a FIFO that somebody reads, and stays one; what comes through is there at the end."""
    read = list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    yield read
    assert path.is_fifo()
    reader.join()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Give a client of a server of two small models."""
    from tests.service.fixtures import build, talking_to  # not where its packages are missing

    _, app = build()
    with talking_to(app) as opened:
        yield opened


@pytest.fixture
def data_dir() -> Path:
    """Give the folder of the real data sets; skips where there is none."""
    named = os.environ.get("SCANLINE_DATA_DIR")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "mnist").is_dir():
        pytest.skip(f"no real data in {folder}: set SCANLINE_DATA_DIR to test with it")
    return folder
