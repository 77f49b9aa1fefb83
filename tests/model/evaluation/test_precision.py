"""Precision of the native backend: default, measured cost, and recorded choice."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.model import draw
from scanline.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.data.dataset import Dataset
from scanline.model.decoders.native import NativeDecoder
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.evaluation.precision import PrecisionCost, measure_precision_cost
from scanline.model.evaluation.records import record_precision
from scanline.service.cli.main import app
from scanline.service.engine.generation import GenerationSpec
from scanline.service.state.registry import open_engine
from tests.dataset_files import write_mnist
from tests.kernels.native.conftest import isa as isa  # the fixture
from tests.service.engine.fixtures import drawn
from tests.service.fixtures import GREY, save_tiny, settings, tiny_model

MNIST = replace(GREY, height=28, width=28)


def some_images(count: int) -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (count, GREY.height, GREY.width, 1))
    return Dataset("noise", images.astype(np.uint8), None, ())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cost_is_the_difference_to_float32(precision: Precision) -> None:
    """With several batches, the last of which is not full."""
    network, data = tiny_model(), some_images(67)
    seen: list[int] = []
    cost = measure_precision_cost(network, data, precision, 1, seen.append)
    assert (cost.precision, cost.images, cost.data, sum(seen)) == (precision, 67, "noise", 67)
    assert (cost.bits_per_dim == 0) == (precision == "float32")
    limits = {"float32": 0.0, "bf16": 2e-2, "int16": 1e-3, "int8": 5e-2, "int10": 1e-2}
    assert abs(cost.bits_per_dim) <= limits[precision]
    decoder = NativeDecoder(network, 67, 1, precision=precision)
    whole = evaluate(network, data).bits_per_dim + cost.bits_per_dim
    inputs = decoder.inputs.empty(GREY, 67)
    inputs.canvas[:], inputs.known[:] = data.images.reshape(inputs.canvas.shape), True
    decoder.begin(range(67), inputs)
    assert decoder.bits.sum() / 67 / GREY.dims == pytest.approx(whole, abs=1e-4)


def test_recorded_precision_is_used(tmp_path: Path) -> None:
    """The server and the API use it; the bytes differ from another precision."""
    pictures = {}
    for precision in ("int8", "float32"):
        path = tmp_path / precision / "tiny.safetensors"
        facts = {"native_precision": asdict(PrecisionCost(precision, 0.0, 0.0, 2, "noise"))}
        save_checkpoint(path, tiny_model(), facts)
        checkpoint = load_checkpoint(path)
        assert checkpoint.native_precision == precision
        engine = open_engine(checkpoint, settings(backend="native", threads=1))
        try:
            assert engine.variant.endswith(f" {precision}")
            generation = engine.queue.submit(GenerationSpec(n=40, seed=5))
            with engine.queue.reading(generation):
                served = np.stack(drawn(generation))
        finally:
            engine.close(drain=0)
        pictures[precision] = draw(path, 40, seed=5, backend="native", threads=1)
        np.testing.assert_array_equal(pictures[precision].reshape(served.shape), served)
    assert (pictures["int8"] != pictures["float32"]).any()


def test_int16_is_the_default(isa: str) -> None:
    assert NativeDecoder(tiny_model(), 1, 1, isa=isa).precision == "int16"
    assert Checkpoint("tiny", tiny_model()).native_precision is None


def test_a_precision_is_measured_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "data" / "mnist", count=30)
    path = save_tiny(tmp_path / "weights", "mnist", MNIST)
    folders = ["--weights", "weights", "--data-dir", "data"]
    given = ["evaluate", *folders, "--dataset", "mnist", "--precision"]
    done = CliRunner().invoke(app, [*given, "int16", "--limit", "3"])
    assert done.exit_code == 0, done.output
    assert "mnist on mnist: int16 costs " in done.output
    assert load_checkpoint(path).native_precision is None
    done = CliRunner().invoke(app, [*given, "int16", "--record", "--limit", "1000"])
    assert done.exit_code == 0, done.output
    known = load_checkpoint(path)
    assert known.native_precision == "int16"
    assert known.facts["native_precision"]["images"] > 3
    assert known.facts["validation"] == [{"bits_per_dim": 5.5}]
    for wrong, message in (
        (["int4"], "precision must be one of float32, bf16, int16, int8, int10, not 'int4'"),
        (["int8", "--label"], "--label: not allowed with --precision"),
        (["int8", "--samples", "4"], "--samples: not allowed with --precision"),
        (["int8", "--record", "--limit", "999"], "at least 1,000 images: leave --limit out"),
    ):
        done = CliRunner().invoke(app, [*given, *wrong])
        assert done.exit_code != 0
        assert message in f"{done.output} {done.exception}"


def test_precision_with_too_much_cost_is_not_recorded(tmp_path: Path) -> None:
    path = save_tiny(tmp_path)
    before = path.read_bytes()
    for cost, error in ((0.0021, 0.0), (0.0015, 0.0003), (0.0, inf), (nan, 0.0)):
        with pytest.raises(
            ValueError, match=r"by these 99 images .* more than 0.002 bits/dim in int8"
        ):
            record_precision(
                load_checkpoint(path), tmp_path, PrecisionCost("int8", cost, error, 99, "mnist")
            )
    few = PrecisionCost("int8", 0.0, 0.0, 29, "mnist")  # too few images
    with pytest.raises(ValueError, match="measure at least 30 images"):
        record_precision(load_checkpoint(path), tmp_path, few)
    assert path.read_bytes() == before
    record_precision(
        load_checkpoint(path), tmp_path, PrecisionCost("int8", 0.0015, 0.0002, 30, "mnist")
    )
    assert load_checkpoint(path).native_precision == "int8"


def test_unknown_precision_is_rejected(tmp_path: Path) -> None:
    save_checkpoint(
        tmp_path / "tiny.safetensors", tiny_model(), {"native_precision": {"precision": "int4"}}
    )
    with pytest.raises(CheckpointError, match="its native_precision is unknown: 'int4'"):
        load_checkpoint(tmp_path / "tiny.safetensors")
