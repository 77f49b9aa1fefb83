"""Networks with other feature maps than the default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scanline.kernels.attention.features import DIRECTED_MAPS
from scanline.kernels.constants import FEATURE_MAPS
from scanline.model.api import draw
from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import random_canvas, random_network, tiny_config

other_maps = pytest.mark.parametrize("name", [name for name in FEATURE_MAPS if name != "elu"])


@other_maps
def test_checkpoint_round_trip(name: str, tmp_path: Path) -> None:
    """A loaded network draws the same images; a new network has new random features."""
    config = tiny_config(feature_map=name)
    network = random_network(config, dtype=torch.float32)
    save_checkpoint(tmp_path / "mapped.safetensors", network, {})
    read = load_checkpoint(tmp_path / "mapped.safetensors").model
    canvas = random_canvas(config, 2)
    assert torch.equal(read(canvas), network(canvas))
    assert (draw(read, 2, seed=3) == draw(network, 2, seed=3)).all()
    other = random_network(config, seed=1, dtype=torch.float32)
    other.load_state_dict(dict(network.named_parameters()), strict=False)
    assert torch.equal(other(canvas), network(canvas)) == (name not in DIRECTED_MAPS)
