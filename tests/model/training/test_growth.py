"""Tests of growing a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import CheckpointError, save_checkpoint
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.growth import grow, incompatible_fields
from scanline.model.training.trainer import Trainer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config


@pytest.mark.parametrize(("small", "large"), [(1, 2), (2, 4), (2, 5), (3, 4)])
@pytest.mark.parametrize("feature_map", ["elu", "random"])
def test_grown_network_computes_the_same(small: int, large: int, feature_map: str) -> None:
    config = tiny_config(n_layers=small, short_conv="2x3", feature_map=feature_map)
    network = random_network(config)
    deeper = replace(config, n_layers=large)
    assert incompatible_fields(config, deeper) == []
    model = LinearTransformer(deeper).double().eval()
    tensors = grow(network.state_dict(), config, deeper, model.state_dict())
    assert tensors.keys() == model.state_dict().keys()
    model.load_state_dict(tensors)
    canvas = random_canvas(config, 2)
    assert torch.equal(model(canvas), network(canvas))

    # New layers are copies except for their output projections, which receive gradients.
    torch.autograd.backward(model.bits(canvas).sum())
    for block in model.blocks:
        assert all(p.grad is not None for p in block.parameters())
        for name in ("attention.out.weight", "linear2.weight"):
            gradient = block.get_parameter(name).grad
            assert gradient is not None
            assert (gradient != 0).any()
    silent = [not block.get_parameter("linear2.weight").any() for block in model.blocks]
    assert not silent[0]
    assert sum(silent) == large - small
    for before, block in enumerate(list(model.blocks)[1:]):
        if silent[before + 1]:
            below = model.blocks[before].get_parameter("attention.query.weight")
            assert torch.equal(block.get_parameter("attention.query.weight"), below)


@pytest.mark.parametrize("layers", [2, 3])
def test_widened_network_computes_the_same(layers: int) -> None:
    """New features have random inputs, output weights of zero, and a gradient at once."""
    config = tiny_config(short_conv="2x3")
    network = random_network(config)
    wider = replace(config, d_ff=config.d_ff + 7, n_layers=layers)
    assert incompatible_fields(config, wider) == []
    assert "d_ff" in incompatible_fields(wider, config)
    model = LinearTransformer(wider).double().eval()
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(grow(network.state_dict(), config, wider, initial))
    canvas = random_canvas(config, 2)
    assert_close(model(canvas), network(canvas))
    torch.autograd.backward(model.bits(canvas).sum())
    for layer, block in enumerate(model.blocks):
        new = slice(config.d_ff, None)
        for name in ("linear1.weight", "linear1.bias"):
            features = block.get_parameter(name)[new]
            assert torch.equal(features, initial[f"blocks.{layer}.{name}"][new])
        outputs = block.get_parameter("linear2.weight")
        assert not outputs[:, new].any()
        assert outputs.grad is not None
        assert (outputs.grad[:, new] != 0).any()


def test_start_from_checkpoint_without_layers_and_convolution(tmp_path: Path) -> None:
    plain = random_network(tiny_config()).float()
    save_checkpoint(tmp_path / "plain.safetensors", plain, {})
    config = tiny_config(short_conv="2x3", n_layers=3, d_ff=40)
    trainer = Trainer(config, TrainingConfig(steps=1), tmp_path / "run", torch.device("cpu"))
    trainer.start_from(tmp_path / "plain.safetensors")
    canvas = random_canvas(config, 2)
    with torch.no_grad():
        for network in (trainer.train_state.model, trainer.train_state.ema):
            assert_close(network(canvas), plain(canvas))
    save_checkpoint(tmp_path / "conv.safetensors", trainer.train_state.model, {})
    back = Trainer(tiny_config(), TrainingConfig(steps=1), tmp_path / "back", torch.device("cpu"))
    with pytest.raises(CheckpointError, match="short_conv"):
        back.start_from(tmp_path / "conv.safetensors")


def test_incompatible_growth_is_rejected(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "it.safetensors", random_network(tiny_config()).float(), {})
    shallower = tiny_config(n_layers=1)
    trainer = Trainer(shallower, TrainingConfig(steps=1), tmp_path / "run", torch.device("cpu"))
    with pytest.raises(CheckpointError, match=r"\(n_layers\); start from .* with fewer layers or"):
        trainer.start_from(tmp_path / "it.safetensors")
    # With post-norm no layer is the identity.
    post = tiny_config(norm="post")
    assert incompatible_fields(post, replace(post, n_layers=3)) == ["n_layers"]
