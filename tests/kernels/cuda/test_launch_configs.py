"""Tests of the launch configurations of the fused decode kernel, and of its launcher."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_config import COMPILED
from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.driver import CompileError, DriverError, literal
from scanline.kernels.cuda.fused.fused_decode import (
    LAUNCH_CONFIGS,
    FusedDecode,
    LaunchConfig,
    defines,
    shared_bytes,
    source,
    supported_configs,
    unsupported_reason,
)
from scanline.model.config import PRESETS
from scanline.model.decoders.packing import decode_config_for
from tests.conftest import ROOT

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # per block


@pytest.mark.parametrize("launch_config", LAUNCH_CONFIGS, ids=str)
def test_shared_bytes_equal_the_layout(launch_config: LaunchConfig) -> None:
    """The layout is evaluated by a static assertion; no code is generated."""
    found = 0
    for name in ("mnist-paper", "mnist", "cifar10", "cifar10, widened"):
        s = COMPILED[name]
        if not launch_config.fits(s):
            continue
        text = "#include <cstdio>\nusing u16=unsigned short; using u64=unsigned long long;\n"
        text += "struct uint4 {}; float expf(float); float erff(float); float fmaxf(float, float);"
        text += "float fminf(float, float); using u32=unsigned; float float_of(u32);\n"
        text += "#define DEVICE inline\n"
        options = [f"-D{key}={literal(value)}" for key, value in defines(s, launch_config).items()]
        header = Path(source.__code__.co_filename).with_name("layout.h").read_text()
        text += header + f"\nstatic_assert(SHARED_BYTES == {shared_bytes(s, launch_config)});\n"
        compiler = shutil.which("g++") or pytest.skip("needs g++")
        result = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", *options, "-"],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        found += 1
    assert found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None), ({"dtype": torch.float32}, "in bf16"), ({"heads": 2}, "head size must be 32"),
        ({"d_model": 96, "heads": 3}, "multiples of 128"), ({"linear_encoding": True}, None),
    ],
)  # fmt: skip
def test_unsupported_reason(changes: dict[str, Any], reason: str | None) -> None:
    actual = unsupported_reason(replace(COMPILED["mnist"], **changes))
    assert (reason in actual) if actual and reason else (actual is reason)


def test_every_preset_has_configs_for_few_and_many_rows() -> None:
    supported = [name for name, s in COMPILED.items() if unsupported_reason(s) is None]
    presets = [decode_config_for(config) for config in PRESETS.values()]
    assert all(unsupported_reason(preset) is None for preset in presets)
    for name in supported:
        launch_configs = supported_configs(
            COMPILED[name], LAUNCH_CONFIGS, capability=(9, 0), shared=SHARED_BYTES[90]
        )
        assert launch_configs[0].cluster > 1
        assert launch_configs[0].stage_weights or COMPILED[name] not in presets
        assert launch_configs[-1].cluster == 1
        older = supported_configs(
            COMPILED[name], LAUNCH_CONFIGS, capability=(8, 0), shared=SHARED_BYTES[80]
        )
        assert older
        assert {config.cluster for config in older} == {1}


def test_documented_sizes_are_supported() -> None:
    """The table lists each ``d_model`` with which every preset is supported, and no other."""
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (\d+) kB \|[^|]*\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    widths, hidden = range(128, 1281, 128), range(128, 2049, 128)
    presets = [decode_config_for(config) for config in PRESETS.values()]
    sliced = {d_ff for d_ff in hidden if d_ff % 512 == 0 or d_ff % 640 == 0}

    def supports_all(d_model: int, d_ff: int, kilobytes: int) -> bool:
        sizes: dict[str, Any] = {"d_model": d_model, "heads": d_model // 32, "d_ff": d_ff}
        return all(
            supported_configs(
                replace(preset, **sizes), LAUNCH_CONFIGS,
                capability=(9, 0) if kilobytes == 227 else (8, 0), shared=kilobytes << 10,
            )
            for preset in presets
        )  # fmt: skip

    assert [kilobytes for kilobytes, *_ in rows] == ["227", "163", "99"]
    for kilobytes, *cells in rows:
        for cell, chosen in zip(cells, (sliced, {*hidden} - sliced), strict=True):
            supported = [
                d_model for d_model in widths
                if all(supports_all(d_model, d_ff, int(kilobytes)) for d_ff in chosen)
            ]  # fmt: skip
            assert cell == (", ".join(map(str, supported)) or "none")


@pytest.mark.parametrize(
    ("rows", "max_clusters", "partition"),
    [(1, 7, (1, 2)), (7, 7, (4, 2)), (9, 4, (3, 4)), (60, 7, (8, 8)), (8, 1, (1, 8))],
)
def test_partition_has_even_rows_per_cluster(
    rows: int, max_clusters: int, partition: tuple[int, int]
) -> None:
    launch_config = LaunchConfig(cluster=4, rows=8, warps=6)
    assert launch_config.partition(rows, max_clusters) == partition


@pytest.mark.broad
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_launch_configs_compile(arch: int) -> None:
    """``make gate`` compiles them for every network."""
    pytest.importorskip("triton")
    result = subprocess.run(
        [sys.executable, "-m", "scanline.kernels.cuda.compile_gate", "--arch", str(arch),
         "--match", "fused_decode/(mnist-paper|mnist|cifar10)/"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_staging_needs_a_warp_per_chunk() -> None:
    paper = COMPILED["mnist-paper"]
    assert LAUNCH_CONFIGS[0].stage_weights
    assert LAUNCH_CONFIGS[0].fits(paper)
    assert not LAUNCH_CONFIGS[0].fits(
        replace(paper, d_model=512, heads=16)
    )  # 24 chunks of q, k and v
    wide = replace(paper, d_model=384, heads=12, d_ff=1536)
    # 18 or 36 chunks of the output product.
    assert {x.cluster for x in LAUNCH_CONFIGS if x.fits(wide)} == {1}


class FakeKernel:
    """Kernel that records launches, in a list of numbers of blocks and pixels."""

    def __init__(self, cluster: int, max_clusters: int, launched: list[tuple[int, int]]) -> None:
        self.cluster, self.max_clusters, self.launched = cluster, max_clusters, launched

    def max_active_clusters(self) -> int:
        if self.cluster > 8:
            raise DriverError("cuOccupancyMaxActiveClusters: invalid cluster size (912)")
        return self.max_clusters if self.cluster < 8 else 0

    def launch(self, clusters: int, arguments: Any) -> None:
        self.launched.append((clusters * self.cluster, arguments.pixels))


class FakeGpu:
    """GPU that runs up to ``max_clusters`` clusters of fewer than 8 blocks.

    Configurations whose cluster size is in ``not_compiled`` do not compile.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.max_clusters, self.not_compiled = 1, set[int]()
        self.launched = list[tuple[int, int]]()
        memory = {name: torch.empty(0) for name in fused_decode._POINTERS}
        memory["positions"] = torch.empty(9)
        monkeypatch.setattr(fused_decode, "kernel_memory", lambda *arguments: memory)
        monkeypatch.setattr(fused_decode, "compile_cached", self.compile)
        monkeypatch.setattr(fused_decode, "load_kernel", self.load)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def compile(self, text: str, name: str, macros: dict[str, int], *more: Any) -> bytes:
        if macros["CLUSTER"] in self.not_compiled:
            raise CompileError(f"{name} does not compile: Illegal modifier")
        return b"code"

    def load(self, *arguments: Any, cluster: int, **more: Any) -> FakeKernel:
        return FakeKernel(cluster, self.max_clusters, self.launched)

    def open(self) -> FusedDecode:
        s = COMPILED["mnist-paper"]
        return FusedDecode(s, {}, {}, capability=(9, 0), shared=SHARED_BYTES[90])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_unsupported_launch_configs_are_skipped(gpu: FakeGpu) -> None:
    """A MIG slice may be too small for large clusters."""
    gpu.open().run(3, 28)
    assert gpu.launched == [(4, 28)]
    gpu.max_clusters = 0
    with pytest.raises(
        DriverError, match=r"no launch configuration works .*: cuOcc.* cluster size"
    ):
        gpu.open()


def test_launch_configs_that_do_not_compile_are_skipped(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    """Another NVRTC may refuse an instruction that only clusters use."""
    gpu.not_compiled = {4, 8, 16}
    gpu.open().run(3, 28)
    assert gpu.launched == [(2, 28)]
    assert "LaunchConfig(cluster=4, rows=16" in caplog.text
    assert "decode.cu does not compile: Illegal modifier" in caplog.text
    caplog.clear()
    gpu.not_compiled |= {1, 2}
    with pytest.raises(DriverError, match=r"no launch configuration works .*: Illegal modifier"):
        gpu.open()
    assert not caplog.text


def test_too_little_shared_memory_raises() -> None:
    s = replace(COMPILED["mnist-paper"], layers=1)
    memory = allocate_weights(s, "cpu"), allocate_buffers(s, 1, "cpu")
    with pytest.raises(DriverError, match="the GPU's 1,000 bytes of shared memory per block"):
        FusedDecode(s, *memory, capability=(9, 0), shared=1000)
    odd = replace(s, d_model=128, d_ff=384)  # only clusters fit, which need a newer GPU
    with pytest.raises(DriverError, match="no launch configuration fits a network of this size"):
        FusedDecode(odd, *memory, capability=(8, 0), shared=SHARED_BYTES[80])
