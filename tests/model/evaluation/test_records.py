"""Recording evaluation results in checkpoints and reading them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    SamplingDefaults,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation import records
from scanline.model.evaluation.precision import PrecisionCost
from scanline.model.evaluation.records import (
    evaluate_checkpoint,
    record_defaults,
    record_evaluation,
    record_precision,
    recorded_bits_per_dim,
)
from tests.conftest import random_canvas
from tests.service.fixtures import GREY, save_tiny, tiny_model


@pytest.mark.parametrize(
    ("facts", "figure"),
    [
        ({}, None),
        ({"validation": []}, None),
        ({"validation": [{"bits_per_dim": 3.0}, {"bits_per_dim": 2.0}]}, 2.0),
        ({"test": {"bits_per_dim": 4.0}, "validation": [{"bits_per_dim": 2.0}]}, 4.0),
        ({"test_with_label": {"bits_per_dim": 1.0}}, None),
    ],
)
def test_test_set_takes_precedence_over_validation(
    facts: dict[str, Any], figure: float | None
) -> None:
    assert recorded_bits_per_dim(facts) == figure


def test_evaluation_is_added_to_the_facts(tmp_path: Path) -> None:
    path = save_tiny(tmp_path)
    images = random_canvas(GREY, 5).numpy().reshape(5, GREY.height, GREY.width, 1)
    data = Dataset("images", images, np.arange(5) % 3, GREY.classes, "a note")
    for with_label, key in ((False, "test"), (True, "test_with_label")):
        checkpoint = load_checkpoint(path)
        seen: list[int] = []
        figure = evaluate_checkpoint(checkpoint, data, with_label=with_label, progress=seen.append)
        assert sum(seen) == figure.images == 5
        record_evaluation(checkpoint, tmp_path, data, figure, with_label=with_label)
        facts = load_checkpoint(path).facts
        assert facts[key] == {
            "bits_per_dim": figure.bits_per_dim, "standard_error": figure.standard_error,
            "images": 5, "data": "images", "note": "a note",
        }  # fmt: skip
    assert facts["validation"] == [{"bits_per_dim": 5.5}]
    assert facts["test"]["bits_per_dim"] != facts["test_with_label"]["bits_per_dim"]
    assert recorded_bits_per_dim(facts) == facts["test"]["bits_per_dim"]


def test_infinite_standard_error_is_recorded_as_null(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(save_tiny(tmp_path))
    images = random_canvas(GREY, 1).numpy().reshape(1, GREY.height, GREY.width, 1)
    data = Dataset("images", images, None, GREY.classes)
    record_evaluation(checkpoint, tmp_path, data, evaluate_checkpoint(checkpoint, data))
    fact = load_checkpoint(tmp_path / f"{checkpoint.name}.safetensors").facts["test"]
    assert (fact["standard_error"], fact["images"]) == (None, 1)


def test_sampling_defaults_are_added_to_the_facts(tmp_path: Path) -> None:
    path = save_tiny(tmp_path)
    before = load_checkpoint(path)
    assert before.defaults == SamplingDefaults(guidance=1.0, top_p=1.0)
    record_defaults(before, tmp_path, SamplingDefaults(guidance=2.5, top_p=0.9))
    after = load_checkpoint(path)
    assert after.defaults == SamplingDefaults(guidance=2.5, top_p=0.9)
    assert after.facts == before.facts | {"defaults": {"guidance": 2.5, "top_p": 0.9}}


def test_concurrent_records_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_tiny(tmp_path)
    first, second = load_checkpoint(path), load_checkpoint(path)
    saving, read_again = threading.Event(), threading.Event()

    def load(path: Path) -> Checkpoint:
        if saving.is_set():
            read_again.set()
        return load_checkpoint(path)

    def save(*what: Any) -> None:
        saving.set()
        read_again.wait(0.5)  # the other thread would read an old file now
        save_checkpoint(*what)

    monkeypatch.setattr(records, "load_checkpoint", load)
    monkeypatch.setattr(records, "save_checkpoint", save)
    with ThreadPoolExecutor(1) as pool:
        recorded = pool.submit(record_defaults, first, tmp_path, SamplingDefaults(top_p=0.9))
        assert saving.wait(60)
        record_precision(second, tmp_path, PrecisionCost("int8", 0.0, 0.0001, 99, "images"))
        recorded.result()
    after = load_checkpoint(path)
    assert (after.defaults, after.native_precision) == (SamplingDefaults(top_p=0.9), "int8")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("config", [GREY, replace(GREY, n_layers=2)], ids=["weights", "network"])
def test_evaluation_of_changed_weights_is_not_recorded(tmp_path: Path, config: ModelConfig) -> None:
    """If a training run saved new weights meanwhile, the file stays as it is."""
    path = save_tiny(tmp_path)
    measured, newer = load_checkpoint(path), tiny_model(config)
    with torch.no_grad():
        newer.norm.bias[0] += 1e-3
    save_checkpoint(path, newer, {"steps": 9})
    before = path.read_bytes()
    with pytest.raises(
        CheckpointError, match=r"weights in .*tiny.safetensors have changed .* measure again"
    ):
        record_defaults(measured, tmp_path, SamplingDefaults(top_p=0.9))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "given",
    [
        {"guidance": 11.0}, {"guidance": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": "most"},
        {"guidance": float("nan")}, {"heat": 1.0}, [2.0], 3,
    ],
    ids=str,
)  # fmt: skip
def test_invalid_defaults_are_rejected(tmp_path: Path, given: Any) -> None:
    path = tmp_path / "odd.safetensors"
    save_checkpoint(path, tiny_model(), {"defaults": given})
    with pytest.raises(CheckpointError, match=r"odd\.safetensors"):
        load_checkpoint(path)
    save_checkpoint(path, tiny_model(), {"defaults": {"top_p": 0.5}})
    assert load_checkpoint(path).defaults == SamplingDefaults(guidance=1.0, top_p=0.5)
