"""Tests of checkpoints with 16-bit matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from scanline.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.compact import compact
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

CONFIG = tiny_config(classes=("cat", "dog"), short_conv="2x3")


def test_matrices_take_half_the_bytes_and_keep_their_values(tmp_path: Path) -> None:
    network = random_network(CONFIG).float()
    facts = {"steps": 3, "test": {"bits_per_dim": 1.0}, "native_precision": {"precision": "int8"}}
    small = compact(Checkpoint("it", network, facts))
    assert small.facts == {"steps": 3}  # not what was measured with other weights
    path = tmp_path / "it.safetensors"
    save_checkpoint(path, small.model, small.facts)
    stored = safetensors.torch.load_file(path)
    for name, tensor in network.state_dict().items():
        assert stored[name].dtype == (torch.float16 if tensor.ndim > 1 else torch.float32)
        assert torch.equal(stored[name], tensor.half() if tensor.ndim > 1 else tensor)
    loaded = load_checkpoint(path)
    assert all(tensor.dtype == torch.float32 for tensor in loaded.model.parameters())
    assert loaded.digest == small.digest
    canvas = random_canvas(CONFIG, 2)
    with torch.no_grad():
        assert torch.equal(loaded.model.bits(canvas), small.model.bits(canvas))
        assert_close(loaded.model.bits(canvas), network.bits(canvas), torch.float16)
    size = path.stat().st_size
    save_checkpoint(path, loaded.model, loaded.facts)  # as when a result is recorded
    assert path.stat().st_size == size


def test_weights_beyond_the_range_are_an_error() -> None:
    network = random_network(CONFIG).float()
    with torch.no_grad():
        network.head.predictor.weight[0, 0] = 1e6
    with pytest.raises(CheckpointError, match=r"head\.predictor\.weight is too large for 16 bits"):
        compact(Checkpoint("it", network))
