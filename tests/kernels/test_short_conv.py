"""The short convolution: the kernel, and equal results of a network's three forms."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scanline.kernels.short_conv import naive_short_conv, short_conv
from scanline.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, save_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.layers.base import State
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.trainer import Trainer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

CONFIGS = {
    f"{order}-{channels}-{norm}-{height}x{width}": tiny_config(
        order=order, channels=channels, norm=norm, height=height, width=width,
        short_conv="2x3", classes=("cat", "dog"),
    )
    for order, channels, norm, (height, width) in itertools.product(
        ("pixel", "subpixel"), (1, 3), ("pre", "post"), ((5, 4), (1, 2))
    )
}  # fmt: skip
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 5, 6, 8), (1, 1, 4, 3), (3, 2, 12, 1)])
def test_kernel_and_gradients_match_the_sum_of_taps(
    shape: tuple[int, int, int, int], stride: int
) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, shape[-1], dtype=torch.float64, requires_grad=True)
    y, expected = short_conv(x, weight, stride), naive_short_conv(x, weight, stride)
    assert_close(y, expected)
    grad = torch.randn_like(y)
    mine = torch.autograd.grad(y, (x, weight), grad)
    theirs = torch.autograd.grad(expected, (x, weight), grad)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_double_backward_raises() -> None:
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    (first,) = torch.autograd.grad(short_conv(x, weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(first.sum() + weight.sum(), weight)


def test_tap_positions() -> None:
    x = torch.arange(1, 13, dtype=torch.float64).view(1, 3, 4, 1)
    for tap, row in enumerate(([6], [5], [1], [2], [3])):  # the tap's value at row 1, column 1
        weight = torch.zeros(5, 1, dtype=torch.float64)
        weight[tap] = 1
        assert short_conv(x, weight)[0, 1, 1].tolist() == row
    everything = torch.ones(5, 1, dtype=torch.float64)
    corners = short_conv(x, everything)[0, :, :, 0]
    assert corners[0, 0] == 1  # nothing is left of or above the first position
    assert corners[1, 0] == 5 + 1 + 2
    assert corners[1, 3] == 8 + 7 + 3 + 4


@pytest.mark.parametrize(
    ("x", "weight", "stride"),
    [((2, 3, 4), (5, 4), 1), ((1, 2, 3, 4), (4, 4), 1), ((1, 2, 3, 4), (5, 4), 3)],
)
def test_invalid_shapes_raise(x: tuple[int, ...], weight: tuple[int, ...], stride: int) -> None:
    with pytest.raises(ValueError, match=r"(x|weight|stride) must be"):
        short_conv(torch.zeros(x), torch.zeros(weight), stride)


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
        first = length * config.steps_per_pixel
        rest, resumed = stepped(network, canvas, labels, states, first)
        assert_close(rest, parallel[:, first:])
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
