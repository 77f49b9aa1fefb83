"""Blocks and input layers compared with plain computations.

The three evaluations share this code, so comparing them with each other would not find its bugs.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from scanline.model.config import NEIGHBOURS
from scanline.model.inputs import NeighbourhoodInput, neighbour_index, sinusoidal_code
from tests.conftest import assert_close, random_canvas, random_network, tiny_config


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_plain_computation(norm: str, activation: str) -> None:
    config = tiny_config(norm=norm, activation=activation)
    block = random_network(config).blocks[0]
    w = {name.removeprefix("attention."): p.detach() for name, p in block.named_parameters()}
    x = torch.randn(1, 6, 16, dtype=torch.float64)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normed(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x: Tensor) -> Tensor:
        q, k, v = (linear(x, name)[0].view(6, 2, 8) for name in ("query", "key", "value"))
        heads = []
        for h in range(2):
            phi_q, phi_k = (torch.where(y > 0, y + 1, y.exp())[:, h] for y in (q, k))
            scores = (phi_q @ phi_k.T).tril()
            heads.append(scores @ v[:, h] / (scores.sum(-1, keepdim=True) + 1e-6))
        return linear(torch.cat(heads, -1), "out").unsqueeze(0)

    def feed_forward(x: Tensor) -> Tensor:
        y = linear(x, "linear1")
        gelu = 0.5 * y * (1 + torch.erf(y / 2**0.5))
        return linear(gelu if activation == "gelu" else y.clamp(min=0), "linear2")

    if norm == "pre":
        middle = x + attention(normed(x, "norm1"))
        expected = middle + feed_forward(normed(middle, "norm2"))
    else:
        middle = normed(x + attention(x), "norm1")
        expected = normed(middle + feed_forward(middle), "norm2")
    assert_close(block(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["table", "linear"])
@pytest.mark.parametrize("order", ["subpixel", "pixel"])
def test_embedding_sums_places_position_and_label(order: str, encoding: str) -> None:
    config = tiny_config(
        channels=3, order=order, encoding=encoding, head="logistic_mixture", classes=("a", "b"),
        positions="learned" if order == "pixel" else "sinusoidal",
    )  # fmt: skip
    network = random_network(config)
    w = dict(network.named_parameters())
    layer = network.input
    assert isinstance(layer, NeighbourhoodInput)
    canvas = random_canvas(config, 1)
    steps = torch.arange(config.steps).unsqueeze(0)
    got = network.embed(canvas, steps, torch.tensor([1]))[0]
    ids = layer.place_ids(canvas, steps)[0]  # tested below
    code = sinusoidal_code(torch.arange(config.steps), 8)
    for step in range(config.steps):
        expected = torch.zeros(16 if order == "pixel" else 8, dtype=torch.float64)
        for place, value in enumerate(ids[step].tolist()):
            if encoding == "table":
                expected = expected + w["input.tables"][257 * place + value]
            else:
                matrix = w["input.linear.weight"]
                intensity = 0.0 if value == 256 else value / 127.5 - 1
                expected = expected + matrix[:, place] * intensity
                expected = expected + matrix[:, ids.shape[1] + place] * (value == 256)
        if encoding == "linear":
            expected = expected + w["input.linear.bias"]
        if order == "pixel":
            expected = expected + w["positions.row"][step // 4] + w["positions.column"][step % 4]
        else:
            expected = torch.cat([expected, code[step]])
        assert_close(got[step], expected + w["label_embedding.weight"][1])


def test_neighbour_index() -> None:
    height, width = 5, 6
    index = neighbour_index(height, width)
    assert index.shape == (30, 17)
    for pixel in range(30):
        row, column = divmod(pixel, width)
        for place, (down, right) in enumerate(NEIGHBOURS):
            y, x = row + down, column + right
            inside = y >= 0 and 0 <= x < width
            assert index[pixel, place] == (y * width + x if inside else 30)
        assert all(other < pixel or other == 30 for other in index[pixel].tolist())


@pytest.mark.parametrize("order", ["subpixel", "pixel"])
def test_place_ids(order: str) -> None:
    config = tiny_config(
        channels=3, order=order, encoding="linear", head="logistic_mixture", positions="sinusoidal"
    )
    layer = NeighbourhoodInput(config)
    canvas = random_canvas(config, 2)
    ids = layer.place_ids(canvas, torch.arange(config.steps).expand(2, -1))
    index = neighbour_index(config.height, config.width)
    for step in range(config.steps):
        pixel, part = divmod(step, config.steps_per_pixel)
        expected: list[int] = []
        for other in index[pixel].tolist():
            outside = other == config.pixels
            expected += [256] * 3 if outside else canvas[1, other].tolist()
        if order == "subpixel":
            red, green, _ = canvas[1, pixel].tolist()
            expected += [red if part > 0 else 256, green if part > 1 else 256]
        assert ids[1, step].tolist() == expected


def test_sinusoidal_code_matches_vaswani() -> None:
    code = sinusoidal_code(torch.arange(50), 6)
    for position, i in itertools.product(range(50), range(3)):
        angle = torch.tensor(position / 10_000 ** (2 * i / 6))
        assert_close(code[position, 2 * i], angle.sin())
        assert_close(code[position, 2 * i + 1], angle.cos())


@torch.no_grad()
@pytest.mark.parametrize("head", ["categorical", "logistic_mixture"])
def test_autocast_does_not_round_intensities(head: str) -> None:
    """Autocast rounds only the blocks, neither the input map nor the head."""
    config = tiny_config(encoding="linear", head=head)
    network = random_network(config, dtype=torch.float32)
    canvas, steps = random_canvas(config, 2), torch.arange(config.steps).expand(2, -1)
    x = torch.randn(2, 5, config.d_model)
    embedded, parameters = network.input(canvas, steps), network.head(x)
    exactly = network(canvas)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network.input(canvas, steps), embedded)
        assert torch.equal(network.head(x), parameters)
        assert not torch.equal(network(canvas), exactly)
