"""Reference decoder: the network and its head, one step at a time."""

from __future__ import annotations

import numpy as np
import torch

from scanline.model.config import ModelConfig
from scanline.model.decoders.reference import ReferenceDecoder
from tests.conftest import assert_close
from tests.model.decoders.fixtures import (
    GREY,
    KINDS,
    blank,
    draw,
    masked,
    network_bits,
    network_for,
    noise_of,
    scatter_seeds,
)
from tests.model.network.variants import few_variants


@torch.no_grad()
@few_variants
def test_reference_equals_network_and_head(config: ModelConfig) -> None:
    """Compare with an image drawn by hand with ``network.step`` and ``head.sample``, and bits."""
    network = network_for(config)
    inputs = masked(config, 3, seed=4)
    scatter_seeds(inputs)
    drawn, bits = draw(network, "reference", inputs)
    assert_close(torch.from_numpy(bits), torch.from_numpy(network_bits(network, drawn, inputs)))
    noise = noise_of(inputs, config)
    for row in range(3):
        canvas = np.where(inputs.known[row][:, None], inputs.canvas[row], 0)
        label = torch.from_numpy(inputs.label[row : row + 1]).long()
        state = network.initial_state(1)
        for step in range(config.steps):
            pixel, part = divmod(step, config.steps_per_pixel)
            channels = slice(part * config.step_channels, (part + 1) * config.step_channels)
            known = inputs.known[row, pixel]
            if step == 0 and config.start == "given":
                if not known:
                    canvas[0, channels] = config.first_value
                continue
            parameters = network.step(
                torch.from_numpy(canvas[None]), torch.tensor([step]), state, label
            )
            if not known:
                uniforms = noise[row, pixel].reshape(config.steps_per_pixel, -1)[part]
                canvas[pixel, channels] = network.head.sample(
                    parameters,
                    torch.from_numpy(uniforms[None].copy()),
                    torch.from_numpy(inputs.temperature[row : row + 1]),
                )[0].numpy()
        assert np.array_equal(drawn[row], canvas)


def test_samples_are_varied() -> None:
    """The small test networks draw varied pixels, so that comparing bytes is meaningful."""
    for config in KINDS.values():
        drawn, _ = draw(network_for(config), "reference", blank(config, 2))
        assert len(np.unique(drawn)) > 20
        assert not np.array_equal(drawn[0], drawn[1])


def test_reference_runs_in_float64() -> None:
    network, inputs = network_for(GREY), blank(GREY, 2)
    decoder = ReferenceDecoder(network, 2, torch.float64)
    decoder.begin([0, 1], inputs)
    decoder.step([0, 1], GREY.pixels)
    assert all(part.dtype == torch.float64 for state in decoder.states for part in state.values())
    exact = network_bits(network.double(), decoder.canvas, inputs)
    assert_close(torch.from_numpy(decoder.bits), torch.from_numpy(exact).float())
