"""Tests of the fused decode kernel in the CPU emulator, and of its launcher.

The tests on a GPU are in ``test_fused_decode_on_gpu.py``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.kernels.cache import CacheFolderError
from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_config import COMPILED
from scanline.kernels.cuda.fused import driver, fused_decode
from scanline.kernels.cuda.fused.driver import (
    CompileError,
    DriverError,
    compile_cached,
    compile_source,
    literal,
)
from scanline.kernels.cuda.fused.fused_decode import (
    LAUNCH_CONFIGS,
    FusedDecode,
    LaunchConfig,
    defines,
    mma_fragments,
    shared_bytes,
    source,
    supported_configs,
    unsupported_reason,
)
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.packing import decode_config_for
from scanline.model.decoders.reference import ReferenceDecoder
from tests.conftest import random_network
from tests.emulator.emulator import build, draw


def small(preset: str, **fields: Any) -> ModelConfig:
    """Return a preset with few pixels and features, and other changes."""
    sizes = {"height": 2, "width": 3, "n_layers": 2, "d_ff": 128, "d_model": 128, "n_heads": 4}
    return replace(PRESETS[preset], **sizes | fields)


CONFIGS = {
    "paper": small("mnist-paper"),
    "paper, subpixels": small("cifar10-paper", height=1, n_layers=1),
    "given": small("mnist-paper", start="given", first_value=9),
    "grey": small("mnist"),
    "rgb": small("cifar10", height=1, encoding="table"),
    "rgb, linear": small("cifar10", height=1),
    "rgb, categorical": small("cifar10", height=1, encoding="table", head="categorical"),
}
RARE = "given", "rgb, categorical"  # combinations of options that other configs cover
ONE_BLOCK = LaunchConfig(cluster=1, rows=8, warps=4, head_groups=2)
TWO_STATES = LaunchConfig(cluster=1, rows=16, warps=8, head_groups=1, states_per_warp=2)
FOUR_BLOCKS = LaunchConfig(cluster=4, rows=8, warps=6)
STAGED = LaunchConfig(cluster=8, rows=8, warps=8, stage_weights=True)
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # per block
MANY_ROWS = LaunchConfig(cluster=1, rows=48, warps=4, head_groups=2, states_per_warp=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


def images(config: ModelConfig) -> tuple[ReferenceDecoder, list[int]]:
    """Return a reference decoder with five images, and the slots of the kernel's rows.

    One image is guided, so that its twin follows it; the others have other sampling options.
    """
    network = random_network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16().float())
        if config.head == "logistic_mixture":  # broad distributions, for which bf16 is exact enough
            for parameter in network.head.predictor.parameters():
                parameter.mul_(0.25)
    decoder = ReferenceDecoder(network.float().eval(), 6)
    inputs, rng = InputBatch.empty(config, 5), np.random.default_rng(1)
    inputs.seed[:] = np.arange(5) * 2**61 + 7
    inputs.particle[2] = 3
    inputs.known[:] = rng.random(inputs.known.shape) < 0.2
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    inputs.temperature[:] = [1, 0, 0.8, 1, 1.3]
    inputs.top_p[2] = 0.8
    pair = list[int]()
    if config.classes:
        inputs.label[:] = [1, -1, 2, 3, 0]
        inputs.twin[4], inputs.guidance[4], inputs.top_p[4] = 5, 2.5, 0.9
        pair = [5]
    decoder.begin(np.arange(5), inputs)
    return decoder, [4, *pair, 0, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=pytest.mark.broad if name in RARE else (), id=name)
        for name, config in CONFIGS.items()
    ],
)
def test_agrees_with_the_reference(config: ModelConfig, folder: Path) -> None:
    """Up to bf16 rounding, and with the same bytes in all launch configurations."""
    reference, rows = images(config)
    images_only = [row for row in rows if row != 5]  # without the twin
    launch_configs = (
        (ONE_BLOCK, FOUR_BLOCKS, STAGED) if config.n_layers > 1 else (TWO_STATES, FOUR_BLOCKS)
    )
    T = config.pixels
    drawn = [
        draw(reference.model, launch_config, reference.inputs, rows, folder, calls)
        for launch_config, calls in zip(launch_configs, ([T], [1, T - 1], [T, 1]), strict=False)
    ]
    one = drawn[0]
    for other in drawn[1:]:
        assert one.canvas.tobytes() == other.canvas.tobytes()
        assert one.bits[rows].tobytes() == other.bits[rows].tobytes()
        assert torch.equal(one.kv, other.kv)
        assert torch.equal(one.z, other.z)
    labels, canvas = (
        torch.from_numpy(reference.inputs.label[images_only]).long(),
        one.canvas[images_only],
    )
    with torch.no_grad():
        pixels = torch.from_numpy(canvas)
        exact = reference.model.bits_from(reference.model(pixels, labels), pixels)
        states, _ = reference.model.prefill(pixels, torch.full((len(images_only),), T), labels)
    torch.testing.assert_close(
        torch.from_numpy(one.bits[images_only]),
        exact.reshape(len(images_only), T),
        rtol=0.03,
        atol=0.06,
    )
    s = decode_config_for(config)
    steps = T * s.steps_per_pixel - s.first_step
    for i in range(steps % s.write_interval):  # add the pending entries
        key, value = one.pending[..., i, :, :].float().unbind(-2)
        one.z.add_(key)
        one.kv.add_(key.unsqueeze(-1) * value.unsqueeze(-2))
    for name, found in (("kv", one.kv), ("z", one.z)):
        sums = torch.stack([state[f"attention.{name}"] for state in states])
        assert (found[:, images_only] - sums).norm() < 0.03 * sums.norm()
    reference.step(np.array(images_only), T)
    difference = canvas.astype(int) - reference.canvas[images_only].reshape(canvas.shape)
    assert (np.abs(difference) <= 8).mean() > 0.75
    assert one.positions[rows].tolist() == [T] * len(rows)


@pytest.mark.parametrize(
    "launch_config", [STAGED, pytest.param(ONE_BLOCK, marks=pytest.mark.broad)], ids=str
)
def test_linear_encoding_is_more_exact_than_bf16(launch_config: LaunchConfig, folder: Path) -> None:
    """A constant added to all weights must cancel, because normalised inputs sum to zero."""
    config = CONFIGS["rgb, linear"]
    network = random_network(config).float().eval()
    weights = dict(network.named_parameters())
    with torch.no_grad():
        for norm in ("blocks.0.norm2", "norm"):
            weights[f"{norm}.weight"].fill_(1.0)
            weights[f"{norm}.bias"].zero_()
        taps = weights["blocks.0.conv2.weight"].zero_()
        taps[0] = 1.0  # the tap at the step itself
        weights["head.predictor.weight"].mul_(0.25)
        for matrix in ("blocks.0.linear1.weight", "head.predictor.weight"):
            weights[matrix].add_(8.0)
    inputs, rng = InputBatch.empty(config, 6), np.random.default_rng(3)
    inputs.known[:] = True
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    pixels = torch.from_numpy(inputs.canvas.reshape(6, config.pixels, 3))
    with torch.no_grad():
        exact = network.bits_from(network(pixels, torch.full((6,), -1)), pixels)
    bits, s = exact.reshape(6, -1).numpy(), decode_config_for(config)
    split_error, bf16_error = (
        np.abs(
            draw(network, launch_config, inputs, range(6), folder, [config.pixels], x).bits - bits
        )
        for x in (s, replace(s, linear_encoding=False))
    )
    assert split_error.mean() < 0.1 * bf16_error.mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grey", pytest.param("paper", marks=pytest.mark.broad)])
def test_many_rows_draw_the_same_bytes_as_few(name: str, folder: Path) -> None:
    """More rows than a warp processes at a time, in two blocks."""
    config, count = CONFIGS[name], 60
    network = random_network(config).float().eval()
    inputs, rng = InputBatch.empty(config, count), np.random.default_rng(2)
    inputs.seed[:] = np.arange(count)
    inputs.known[:] = rng.random(inputs.known.shape) < 0.3
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    if config.classes:
        inputs.label[:] = np.arange(count) % len(config.classes)
    rows = rng.permutation(count).tolist()
    many = draw(network, MANY_ROWS, inputs, rows, folder, [2, config.pixels - 2])
    some = rows[:3] + rows[-4:]
    few = draw(network, STAGED, inputs, some, folder, [config.pixels])
    assert many.canvas[some].tobytes() == few.canvas[some].tobytes()
    assert many.bits[some].tobytes() == few.bits[some].tobytes()
    assert torch.equal(many.kv[:, some], few.kv[:, some])
    assert many.bits.all(axis=1).all()


@pytest.mark.slow
def test_slices_of_hidden_features_draw_the_same_bytes(folder: Path) -> None:
    """Five slices of 128 features, as for the widened ``cifar10``."""
    reference, rows = images(small("cifar10", height=1, n_layers=1, d_ff=640))
    sliced = replace(ONE_BLOCK, ff_slices=5)
    whole, slices = (
        draw(reference.model, one, reference.inputs, rows, folder, [reference.config.pixels])
        for one in (FOUR_BLOCKS, sliced)
    )
    assert whole.canvas.tobytes() == slices.canvas.tobytes()
    assert whole.bits[rows].tobytes() == slices.bits[rows].tobytes()
    assert whole.bits[rows].all()


def test_rows_without_active_image_are_not_modified(folder: Path) -> None:
    """Empty rows between others and at the end, and finished images."""
    config = CONFIGS["grey"]
    reference, _ = images(config)
    some = draw(
        reference.model, FOUR_BLOCKS, reference.inputs, [-1, 2, -1, 0], folder, [config.pixels, 2]
    )
    alone = draw(reference.model, FOUR_BLOCKS, reference.inputs, [0], folder, [config.pixels])
    assert some.canvas[0].tobytes() == alone.canvas[0].tobytes()
    assert some.positions.tolist() == [config.pixels, 0, config.pixels, 0, 0, 0]
    assert not some.kv[:, [1, 3, 4, 5]].any()


def test_mma_fragments() -> None:
    """The elements of lane 4 g + t, as in the PTX ISA for operand A of mma.m16n8k16."""
    weight = torch.arange(32 * 48).view(32, 48)
    parts = mma_fragments(weight)
    assert parts.shape == (2, 3, 32, 8)
    g, t = 5, 2
    rows, columns = (g, g, g + 8, g + 8, g, g, g + 8, g + 8), (0, 1, 0, 1, 8, 9, 8, 9)
    expected = [16 + row for row in rows], [32 + 2 * t + column for column in columns]
    assert torch.equal(parts[1, 2, 4 * g + t], weight[expected])


@pytest.mark.parametrize("launch_config", LAUNCH_CONFIGS, ids=str)
def test_shared_bytes_equal_the_layout(launch_config: LaunchConfig) -> None:
    """The layout is evaluated by a static assertion; no code is generated."""
    found = 0
    for name in ("mnist-paper", "mnist", "cifar10", "cifar10, widened", "categorical RGB"):
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
    assert {"mnist-paper", "cifar10-paper", "mnist", "cifar10"} <= {*supported}
    for name in supported:
        launch_configs = supported_configs(
            COMPILED[name], LAUNCH_CONFIGS, capability=(9, 0), shared=SHARED_BYTES[90]
        )
        assert launch_configs[0].cluster > 1
        assert launch_configs[0].stage_weights or name not in PRESETS
        assert launch_configs[-1].cluster == 1
        older = supported_configs(
            COMPILED[name], LAUNCH_CONFIGS, capability=(8, 0), shared=SHARED_BYTES[80]
        )
        assert older
        assert {config.cluster for config in older} == {1}


@pytest.mark.parametrize(
    ("rows", "max_clusters", "partition"),
    [(1, 7, (1, 2)), (7, 7, (4, 2)), (9, 4, (3, 4)), (60, 7, (8, 8)), (8, 1, (1, 8))],
)
def test_partition_has_even_rows_per_cluster(
    rows: int, max_clusters: int, partition: tuple[int, int]
) -> None:
    assert FOUR_BLOCKS.partition(rows, max_clusters) == partition


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


def test_compile_error_includes_the_log() -> None:
    pytest.importorskip("nvidia")
    with pytest.raises(CompileError, match=r"(?s)wrong\.cu does not compile: .*nonesuch"):
        compile_source("int one() { return nonesuch; }", "wrong.cu", {}, (9, 0))


def test_compile_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("nvidia")
    source_and_name = 'extern "C" __global__ void one(int* to) { *to = VALUE; }', "one.cu"
    monkeypatch.setenv("SCANLINE_CACHE", str(tmp_path / "new"))
    code = compile_cached(*source_and_name, {"VALUE": 1}, (9, 0))
    (cache_file,) = (tmp_path / "new").iterdir()
    assert code == compile_source(*source_and_name, {"VALUE": 1}, (9, 0))
    assert compile_cached(*source_and_name, {"VALUE": 2}, (9, 0)) != code
    assert compile_cached(*source_and_name, {"VALUE": 1}, (10, 0)) != code
    with monkeypatch.context() as patch:
        patch.setattr(driver, "compile_source", None)
        assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
    for damaged in (b"", cache_file.read_bytes()[:-1]):
        cache_file.write_bytes(damaged)
        assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
        assert cache_file.read_bytes().endswith(code)
    assert not caplog.text
    for cache in (cache_file / "in a file", None):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setenv("SCANLINE_CACHE", str(cache or ""))
            if cache is None:
                patch.setattr(driver, "cache_folder", no_folder)
            assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
            assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
        assert caplog.text.count("set SCANLINE_CACHE to a writable folder to compile") == 1


def no_folder() -> Path:
    raise CacheFolderError("there is no home folder and no temporary folder")


def test_missing_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    with pytest.raises(CompileError, match=r"libnvrtc\.so\.99 not found: .*pip install"):
        compile_source("", "x.cu", {}, (9, 0))


def test_emulator_builds_one_library_per_config(folder: Path) -> None:
    s = decode_config_for(CONFIGS["paper"])
    assert build(s, ONE_BLOCK, folder) is not build(s, FOUR_BLOCKS, folder)


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


def test_unsupported_launch_configs_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice may be too small for large clusters."""
    s, launched = COMPILED["mnist-paper"], list[tuple[int, int]]()
    memory = {name: torch.empty(0) for name in fused_decode._POINTERS}

    class FakeKernel:
        def __init__(self, cluster: int, max_clusters: int) -> None:
            self.cluster, self.max_clusters = cluster, max_clusters

        def max_active_clusters(self) -> int:
            if self.cluster > 8:
                raise DriverError("cuOccupancyMaxActiveClusters: invalid cluster size (912)")
            return self.max_clusters if self.cluster < 8 else 0

        def launch(self, clusters: int, arguments: Any) -> None:
            launched.append((clusters * self.cluster, arguments.pixels))

    monkeypatch.setattr(
        fused_decode, "kernel_memory", lambda *arguments: memory | {"positions": torch.empty(9)}
    )
    monkeypatch.setattr(fused_decode, "compile_cached", lambda *arguments: b"")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for max_clusters in (1, 0):
        monkeypatch.setattr(
            fused_decode,
            "load_kernel",
            lambda *arguments, cluster, max_clusters=max_clusters, **more: FakeKernel(
                cluster, max_clusters
            ),
        )
        if max_clusters:
            FusedDecode(s, {}, {}, capability=(9, 0), shared=SHARED_BYTES[90]).run(3, 28)
        else:
            with pytest.raises(
                DriverError, match=r"no launch configuration works .*: cuOcc.* cluster size"
            ):
                FusedDecode(s, {}, {}, capability=(9, 0), shared=SHARED_BYTES[90])
    assert launched == [(4, 28)]


def test_too_little_shared_memory_raises() -> None:
    s = replace(COMPILED["mnist-paper"], layers=1)
    memory = allocate_weights(s, "cpu"), allocate_buffers(s, 1, "cpu")
    with pytest.raises(DriverError, match="the GPU's 1,000 bytes of shared memory per block"):
        FusedDecode(s, *memory, capability=(9, 0), shared=1000)
