"""Networks with other feature maps than the default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.features import (
    DIRECTED_MAPS,
    FEATURE_MAPS,
    random_directions,
)
from scanline.model.api import draw
from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.native import NativeDecoder
from tests.conftest import random_canvas, random_network, tiny_config

other_maps = pytest.mark.parametrize("name", [name for name in FEATURE_MAPS if name != "elu"])


def qkv(T: int, K: int = 5, V: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random q, k, v and directions."""
    q, k = torch.randn(2, 2, T, 3, K, dtype=torch.float64)
    return q, k, torch.randn(2, T, 3, V, dtype=torch.float64), random_directions(K).double()


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


@other_maps
def test_native_backend_names_an_unsupported_map(name: str) -> None:
    network = random_network(tiny_config(feature_map=name), dtype=torch.float32)
    assert NativeDecoder.unsupported(network.config) == f"feature_map {name!r} (supported: elu)"
    with pytest.raises(BackendError, match=rf"native.*feature_map {name!r}"):
        create_decoder(network, 1, "native")
    assert create_decoder(network, 1, "auto").backend == "reference"


@other_maps
def test_triton_backend_names_an_unsupported_map(name: str) -> None:
    pytest.importorskip("triton")
    from scanline.model.decoders.triton import TritonDecoder

    reason = TritonDecoder.unsupported(tiny_config(feature_map=name))
    assert reason == f"feature_map {name!r} (supported: elu)"
