"""Networks with short convolutions: initial weights, and checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import FORMAT, load_checkpoint
from scanline.model.network import LinearTransformer
from tests.conftest import random_canvas, random_network, tiny_config


@torch.no_grad()
def test_initial_weights_are_the_identity() -> None:
    plain = random_network(tiny_config())
    convolved = LinearTransformer(tiny_config(short_conv="2x3")).double().eval()
    convolved.load_state_dict(convolved.state_dict() | plain.state_dict())
    canvas = random_canvas(plain.config, 2)
    assert torch.equal(plain(canvas), convolved(canvas))


def test_old_checkpoints_without_the_field_load(tmp_path: Path) -> None:
    """Checkpoints written before an option existed lack its field."""
    network = random_network(tiny_config()).float()
    import json

    import safetensors.torch

    fields = network.config.to_dict()
    del fields["short_conv"], fields["attention"]
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    metadata = {"format": FORMAT, "config": json.dumps(fields)}
    safetensors.torch.save_file(tensors, tmp_path / "old.safetensors", metadata)
    loaded = load_checkpoint(tmp_path / "old.safetensors").model
    assert loaded.config == network.config
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])


def test_unsupported_networks_raise() -> None:
    with pytest.raises(ValueError, match="short_conv"):
        tiny_config(input="previous", start="given", short_conv="2x3")
    with pytest.raises(ValueError, match="at least 2 pixels wide"):
        dataclasses.replace(tiny_config(short_conv="2x3"), width=1)
