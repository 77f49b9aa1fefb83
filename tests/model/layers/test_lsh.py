"""Networks with LSH attention."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from tests.conftest import random_canvas, random_network, tiny_config

every_rounds = pytest.mark.parametrize("rounds", [1, 4])


@every_rounds
def test_all_parameters_of_a_network_get_gradients(rounds: int) -> None:
    network = random_network(tiny_config(attention=f"lsh-{rounds}", channels=3))
    assert network.state_dict()["blocks.0.attention.turns"].shape[0] == rounds
    network.bits(random_canvas(network.config, 3)).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    network = random_network(tiny_config(attention="lsh-4"), dtype=torch.float32)
    save_checkpoint(tmp_path / "hashed.safetensors", network, {})
    read = load_checkpoint(tmp_path / "hashed.safetensors").model
    canvas = random_canvas(network.config, 2)
    assert torch.equal(read(canvas), network(canvas))


@torch.no_grad()
def test_drawing_raises_but_scoring_works() -> None:
    network = random_network(tiny_config(attention="lsh-1"), dtype=torch.float32)
    for backend in ("auto", "reference", "native"):
        with pytest.raises(BackendError, match="cannot run this model: attention 'lsh-1'"):
            create_decoder(network, 1, backend)
    canvas = random_canvas(network.config, 2)
    with pytest.raises(RuntimeError, match="no recurrent state"):
        network.step(canvas, torch.zeros(2, dtype=torch.long), network.initial_state(2))
    with pytest.raises(RuntimeError, match="no recurrent state"):
        network.prefill(canvas, torch.tensor([3, 4]))
    assert network.bits(canvas).isfinite().all()
    linear = LinearTransformer(dataclasses.replace(network.config, attention="linear"))
    assert not torch.allclose(linear.bits(canvas), network.bits(canvas))
