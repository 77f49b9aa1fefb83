"""Networks with LSH attention."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.lsh import naive_lsh_attention
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.layers.lsh import LshAttention, seed_hash_functions
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config
from tests.model.decoders.fixtures import draw, masked, noise_of

# Chunks that are much shorter than an image, so that hashes decide what a position sees.
CHUNKED = tiny_config(attention="lsh-4", lsh_chunk=3, classes=("cat", "dog"))


def test_every_round_has_its_own_rotations() -> None:
    network = random_network(tiny_config(attention="lsh-8"))
    assert network.state_dict()["blocks.0.attention.turns"].shape[0] == 8


@torch.no_grad()
@pytest.mark.parametrize("chunk", [3, 32])
@pytest.mark.parametrize("combine", ["union", "mean"])
def test_layer_uses_its_chunk_and_combination(chunk: int, combine: str) -> None:
    config = tiny_config(attention="lsh-4", lsh_chunk=chunk, lsh_combine=combine)
    layer = LshAttention(config).double().eval()
    x = torch.randn(2, 20, config.d_model, dtype=torch.float64)
    heads = (2, 20, config.n_heads, config.head_size)
    qk, v = layer.query(x).view(heads), layer.value(x).view(heads)
    expected = naive_lsh_attention(qk, v, layer.turns, chunk, combine=combine)  # type: ignore[arg-type]
    assert_close(layer.attend(x), expected)


@torch.no_grad()
def test_hash_functions_are_new_in_every_pass_of_the_training_only() -> None:
    layer = LshAttention(CHUNKED)
    stored, x = layer.turns.clone(), torch.randn(1, 20, CHUNKED.d_model)

    def outputs() -> tuple[Tensor, Tensor]:
        seed_hash_functions(3, 4)
        return layer.attend(x), layer.attend(x)

    first, second = outputs()
    assert not torch.equal(first, second)
    for again, expected in zip(outputs(), (first, second), strict=True):
        assert torch.equal(again, expected)
    seed_hash_functions(3, 5)
    assert not torch.equal(layer.attend(x), first)
    layer.eval()
    assert torch.equal(*outputs())
    assert torch.equal(layer.turns, stored)


@torch.no_grad()
def test_network_without_state_refuses_steps_and_prefills() -> None:
    network, canvas = random_network(CHUNKED), random_canvas(CHUNKED, 2)
    with pytest.raises(RuntimeError, match="no recurrent state"):
        network.step(canvas, torch.zeros(2, dtype=torch.long), network.initial_state(2))
    with pytest.raises(RuntimeError, match="no recurrent state"):
        network.prefill(canvas, torch.tensor([3, 4]))
    linear = LinearTransformer(dataclasses.replace(tiny_config(), classes=CHUNKED.classes))
    assert network.bits(canvas).isfinite().all()
    assert not torch.allclose(linear.double().bits(canvas), network.bits(canvas))


@torch.no_grad()
@pytest.mark.parametrize("attention", ["linear", "softmax", "lsh-4"])
@pytest.mark.parametrize("start", ["learned", "given"])
def test_recomputed_steps_read_only_earlier_values(attention: str, start: str) -> None:
    """They equal ``step``, and ``forward`` at the last step, also for LSH attention."""
    config = tiny_config(
        height=2, attention=attention, channels=3, input="previous", order="subpixel", start=start,
        positions="sinusoidal",
        **({"lsh_chunk": 3} if attention == "lsh-4" else {}),
    )  # fmt: skip
    network, canvas = random_network(config), random_canvas(config, 2)
    states = network.initial_state(2)
    for step in range(network.first_step, config.steps):
        later = canvas.clone()
        later.view(2, -1)[:, step:] = 255 - later.view(2, -1)[:, step:]
        parameters = network.recompute_step(later, step)
        assert torch.equal(parameters, network.recompute_step(canvas, step))
        if config.has_state:
            assert_close(parameters, network.step(canvas, torch.full((2,), step), states))
    assert_close(parameters, network(canvas)[:, -1])


@torch.no_grad()
def test_reference_draws_by_recomputation(caplog: pytest.LogCaptureFixture) -> None:
    """Compare with images drawn by hand from ``recompute_step`` and ``head.sample``."""
    network, inputs = random_network(CHUNKED, dtype=torch.float32), masked(CHUNKED, 4)
    caplog.set_level(logging.WARNING)
    drawn, bits = draw(network, "auto", inputs)
    assert "drawing is slow: attention 'lsh-4' has no state" in caplog.text
    noise = torch.from_numpy(noise_of(inputs, CHUNKED))
    for row in range(4):
        canvas = torch.from_numpy(inputs.canvas[row : row + 1] * inputs.known[row, :, None])
        label = torch.from_numpy(inputs.label[row : row + 1]).long()
        temperature = torch.from_numpy(inputs.temperature[row : row + 1])
        for pixel in range(CHUNKED.pixels):
            parameters = network.recompute_step(canvas, pixel, label)
            if not inputs.known[row, pixel]:
                uniforms = noise[row, pixel : pixel + 1]
                canvas[:, pixel] = network.head.sample(parameters, uniforms, temperature)
            cost = float(network.head.bits(parameters, canvas[:, pixel]))
            assert bits[row, pixel] == pytest.approx(cost, rel=1e-5)
        assert (drawn[row] == canvas[0].numpy()).all()
    for backend in ("native", "triton"):
        with pytest.raises(BackendError, match=r"attention 'lsh-4'|NVIDIA GPU|needs Triton"):
            create_decoder(network, 1, backend)
