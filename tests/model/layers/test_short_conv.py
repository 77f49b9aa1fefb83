"""Networks with short convolutions: equal results of their three forms, and checkpoints."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scanline.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, save_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.layers.base import State
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.trainer import Trainer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

CONFIGS = {
    f"{channels}-{height}x{width}": tiny_config(
        channels=channels, height=height, width=width, head="logistic_mixture",
        short_conv="2x3", classes=("cat", "dog"),
    )
    for channels, (height, width) in itertools.product((1, 3), ((5, 4), (1, 2)))
}  # fmt: skip

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def stepped(
    network: LinearTransformer, canvas: Tensor, labels: Tensor, states: list[State], first: int
) -> tuple[Tensor, list[State]]:
    rows = []
    for step in range(first, network.config.steps):
        steps = torch.full((len(canvas),), step)
        rows.append(network.step(canvas, steps, states, labels))
    return torch.stack(rows, 1), states


@torch.no_grad()
@every_config
def test_parallel_equals_recurrent_equals_prefilled(config: ModelConfig) -> None:
    network = random_network(config)
    canvas, labels = random_canvas(config, 3), torch.tensor([-1, 0, 1])
    parallel = network(canvas, labels)
    recurrent, end = stepped(network, canvas, labels, network.initial_state(3), 0)
    assert_close(recurrent, parallel)
    for length in range(1, config.pixels, 3):
        states, _ = network.prefill(canvas, torch.full((3,), length), labels)
        rest, resumed = stepped(network, canvas, labels, states, length)
        assert_close(rest, parallel[:, length:])
        for mine, theirs in zip(resumed, end, strict=True):
            assert mine.keys() == theirs.keys() >= {"conv1.ring", "attention.kv", "conv2.ring"}
            for name in mine:
                assert_close(mine[name], theirs[name])


@torch.no_grad()
def test_initial_weights_are_the_identity() -> None:
    plain = random_network(tiny_config())
    convolved = LinearTransformer(tiny_config(short_conv="2x3")).double().eval()
    convolved.load_state_dict(convolved.state_dict() | plain.state_dict())
    canvas = random_canvas(plain.config, 2)
    assert torch.equal(plain(canvas), convolved(canvas))


def test_training_starts_from_a_checkpoint_without_convolution(tmp_path: Path) -> None:
    plain, config = random_network(tiny_config()).float(), tiny_config(short_conv="2x3")
    save_checkpoint(tmp_path / "plain.safetensors", plain, {})
    settings = TrainingConfig(steps=1)
    trainer = Trainer(config, settings, tmp_path / "run", torch.device("cpu"))
    trainer.start_from(tmp_path / "plain.safetensors")
    canvas = random_canvas(config, 2)
    with torch.no_grad():
        assert_close(trainer.train_state.model(canvas), plain(canvas))
    save_checkpoint(tmp_path / "conv.safetensors", trainer.train_state.model, {})
    back = Trainer(tiny_config(), settings, tmp_path / "back", torch.device("cpu"))
    with pytest.raises(CheckpointError, match="short_conv"):
        back.start_from(tmp_path / "conv.safetensors")


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
