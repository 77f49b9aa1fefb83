"""Networks with softmax attention: equal results of their three forms, and state."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config
from tests.model.network.variants import random_labels

CONFIGS = {
    "grey": tiny_config(attention="softmax", classes=("cat", "dog")),
    "rgb": tiny_config(
        attention="softmax", channels=3, head="logistic_mixture", short_conv="2x3"
    ),
    "given": tiny_config(
        attention="softmax", input="previous", order="subpixel", start="given",
        positions="sinusoidal", head="logistic_mixture",
    ),
}  # fmt: skip

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@torch.no_grad()
@every_config
def test_parallel_equals_recurrent_equals_prefilled(config: ModelConfig) -> None:
    """Rows are prefilled to different lengths, so one step has rows at different positions."""
    network = random_network(config)
    canvas, labels = random_canvas(config, 5), random_labels(config, 5)
    parallel, first = network(canvas, labels), network.first_step
    per_pixel = config.steps_per_pixel
    for lengths in (torch.zeros(5, dtype=torch.long), torch.tensor([0, 1, 13, 6, config.pixels])):
        known = canvas.clone()
        for row, length in enumerate(lengths.tolist()):
            known[row, length:] = 255 - known[row, length:]  # prefill must not read these
        states, _ = network.prefill(known, lengths, labels)
        for row in torch.arange(5).unsqueeze(1):
            mine = [{name: part[row] for name, part in state.items()} for state in states]
            label = None if labels is None else labels[row]
            for step in range(max(int(lengths[row]) * per_pixel, first), config.steps):
                at = torch.tensor([step])
                parameters = network.step(canvas[row], at, mine, label)
                assert_close(parameters[0], parallel[row.item(), step - first])
            for state in mine:
                for name in ("attention.keys", "attention.values"):
                    modelled = config.steps - first
                    assert (state[name][0, :, :modelled] != 0).all()
    together = torch.tensor([2, 5, 2, 9, 19]) * per_pixel
    states, _ = network.prefill(canvas, torch.tensor([2, 5, 2, 9, 19]), labels)
    next_step = 2 * per_pixel - first  # of the first row
    assert all((state["attention.keys"][0, :, next_step] == 0).all() for state in states)
    parameters = network.step(canvas, together, states, labels)
    assert_close(parameters, parallel[torch.arange(5), together - first])
    assert all((state["attention.keys"][0, :, next_step] != 0).all() for state in states)


@torch.no_grad()
def test_weights_fit_a_linear_network_but_outputs_differ() -> None:
    softmax = random_network(CONFIGS["grey"])
    linear = LinearTransformer(dataclasses.replace(softmax.config, attention="linear")).double()
    linear.load_state_dict(softmax.state_dict())
    canvas = random_canvas(softmax.config, 1)
    assert not torch.allclose(softmax(canvas), linear(canvas))


def test_a_step_writes_only_its_own_position() -> None:
    """The state is updated in place, without copies."""
    network = random_network(CONFIGS["grey"], dtype=torch.float32)
    decoder = ReferenceDecoder(network, 3)
    before = [{name: part.clone() for name, part in state.items()} for state in decoder.states]
    tensors = [part for state in decoder.states for part in state.values()]
    decoder.begin([1], InputBatch.empty(network.config, 1))
    decoder.step([1], 2)
    after = [part for state in decoder.states for part in state.values()]
    assert all(one is other for one, other in zip(tensors, after, strict=True))
    for state, empty in zip(decoder.states, before, strict=True):
        for name in ("attention.keys", "attention.values"):
            assert (state[name][1, :, :2] != 0).all()
            state[name][1, :, :2] = 0
            assert torch.equal(state[name], empty[name])
