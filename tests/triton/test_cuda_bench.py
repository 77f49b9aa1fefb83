"""Tests of the CUDA benchmarks."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from scanline.model.bench import cuda as bench_cuda
from scanline.model.bench import cuda_launch_modes, cuda_training
from scanline.model.bench.kernel_profile import format_kernel_times
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.device import find_device
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from scanline.model.training.forward_backward import ForwardBackward
from tests.conftest import tiny_config
from tests.model.decoders.fixtures import network_for
from tests.triton.fixtures import SMALL


def test_run_bench_reports_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(height=1, width=2, n_layers=1, classes=("cat", "dog"))
    network, device = network_for(config), find_device()
    tiny = Checkpoint("tiny", network, {"defaults": {"guidance": 2.0, "top_p": 0.9}})
    monkeypatch.setattr(bench_cuda, "cuda_device", lambda: device)
    monkeypatch.setattr(bench_cuda, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(bench_cuda, "TRAINING_IMAGES", {"tiny": 2})
    report = bench_cuda.run_bench(
        [tiny], slots=[1, 2], seconds=0.01, repeats=1, progress=(lines := list[str]()).append
    )
    assert [(t.backend, t.slots) for t in report.timings] == [("triton", 1), ("triton", 2)]
    assert all(t.images_per_second > 0 and t.gbytes_per_second > 0 for t in report.timings)
    assert report.peaks["copy"] > 0
    assert [(t.model, t.images) for t in report.training] == [("tiny", 2)]
    assert report.training[0].pixels_per_second > 0
    assert bool(report.training[0].kernels) == (device.type == "cuda")
    for timing in report.timings:
        assert timing.limit == "bytes"
        assert timing.limit_ratio is not None
        copied = timing.limit_ratio * timing.gbytes_per_second
        assert copied == pytest.approx(report.peaks["copy"], abs=0.1)
    assert any("× bytes" in line for line in lines)
    guided = [line for line in report.notes if "2 labelled, guidance 2, top_p 0.9: " in line]
    assert "ms per step of 4 slots; " in guided[0]
    sequential = [line for line in report.notes if line.startswith("tiny, without overlap: ")]
    assert any(" ms per step of 1 slots; " in line for line in sequential)
    expected = "us in kernels" if device.type == "cuda" else "no kernels were profiled"
    assert any("2 slots: " in line and expected in line for line in report.notes)
    json.dumps(asdict(report))


def test_format_kernel_times() -> None:
    times = {"a_kernel": 2.0, "state_kernel": 170.4, "b": 3.0, "c": 4.0, "d": 5.0, "e": 1.0}
    assert format_kernel_times(times) == "state 170, d 5, c 4, b 3, others 3 of 185 us in kernels"
    assert format_kernel_times({"state_kernel": 7.0}) == "state 7 of 7 us in kernels"
    assert format_kernel_times({f"void {'t' * 99}": 7.0}) == f"{'t' * 60}… 7 of 7 us in kernels"


def test_launch_modes_that_fail_or_draw_other_bytes_are_reported() -> None:
    config = tiny_config(height=1, width=2, n_layers=1)
    network, another = network_for(config), LinearTransformer(config)
    modes = {
        **cuda_launch_modes.LAUNCH_MODES,
        "failing": lambda network, slots: TritonDecoder(network, 0),
        "different": lambda network, slots: TritonDecoder(another, slots),
    }
    results = dict(zip(modes, cuda_launch_modes.try_launch_modes(network, modes), strict=True))
    count = len(cuda_launch_modes.LAUNCH_MODES)
    assert [succeeded for _, succeeded in results.values()] == [True] * count + [False] * 2
    assert results["failing"][0] == "failing: ValueError: max_slots must be at least 1, not 0"
    assert results["different"][0].endswith("% of the bytes are equal")
    two = {name: modes[name] for name in (next(iter(cuda_launch_modes.LAUNCH_MODES)), "different")}
    lenient = cuda_launch_modes.try_launch_modes(network, two, 0.0)
    assert [succeeded for _, succeeded in lenient] == [True, True]


@pytest.mark.parametrize(
    ("works", "fused", "status"),
    [
        ([True, True], True, 0), ([False, True], True, 1), ([True, False], True, 3),
        ([True, True], False, 1),
    ],
)  # fmt: skip
def test_launch_modes_exit_code(
    monkeypatch: pytest.MonkeyPatch, works: list[bool], fused: bool, status: int
) -> None:
    def try_launch_modes(
        network: object, modes: object, min_equal: float
    ) -> list[tuple[str, bool]]:
        return [("a mode", one) for one in (works if min_equal == 1 else [fused])]

    monkeypatch.setattr(cuda_launch_modes, "try_launch_modes", try_launch_modes)
    with pytest.raises(SystemExit) as stop:
        cuda_launch_modes.main()
    assert stop.value.code == status


def test_check_training_rejects_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_for(SMALL)
    original = cuda_training._forward_backward

    def wrong(
        passes: ForwardBackward, model: LinearTransformer, canvas: torch.Tensor
    ) -> torch.Tensor:
        return original(passes, model, 255 - canvas if passes._bf16 else canvas)

    cuda_training.check_training("tiny", network)
    monkeypatch.setattr(cuda_training, "_forward_backward", wrong)
    with pytest.raises(RuntimeError, match=r"tiny: in bf16 the loss differs .*; not timed"):
        cuda_training.check_training("tiny", network)


def test_run_bench_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="no CUDA device found"):
        bench_cuda.run_bench([])
