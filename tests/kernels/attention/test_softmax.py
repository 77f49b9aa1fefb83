"""Softmax attention: the kernel, equal results of a network's three forms, and serving."""

from __future__ import annotations

import base64
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.softmax import (
    naive_softmax_attention,
    softmax_attention,
    softmax_attention_step,
)
from scanline.model.checkpoint import load_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders import memory as decoder_memory
from scanline.model.decoders.base import BackendError, InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from scanline.model.noise import image_seed
from scanline.service.app import create_app
from scanline.service.state import AppState
from tests.conftest import assert_close, random_canvas, random_network, tiny_config
from tests.service.fixtures import (
    GREY,
    decode_png,
    encode,
    random_picture,
    save_tiny,
    settings,
    talking_to,
)

CONFIGS = {
    "grey": tiny_config(attention="softmax", classes=("cat", "dog")),
    "rgb": tiny_config(attention="softmax", channels=3, short_conv="2x3", norm="post"),
    "subpixel": tiny_config(attention="softmax", channels=3, order="subpixel"),
    "given": tiny_config(
        attention="softmax", input="previous", order="subpixel", start="given",
        positions="sinusoidal", head="logistic_mixture",
    ),
}  # fmt: skip
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
SERVED = dataclasses.replace(GREY, attention="softmax")


def qkv(B: int, T: int, H: int, K: int, V: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k = torch.randn(2, B, T, H, K, dtype=torch.float64)
    return q, k, torch.randn(B, T, H, V, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(2, 33, 3, 8, 8), (1, 1, 1, 4, 4), (3, 7, 2, 4, 6)], ids=str)
def test_kernel_and_gradients_match_the_formula(
    shape: tuple[int, int, int, int, int],
) -> None:
    inputs = [x.requires_grad_() for x in qkv(*shape)]
    o, expected = softmax_attention(*inputs), naive_softmax_attention(*inputs)
    assert_close(o, expected)
    grad = torch.randn_like(o)
    mine = torch.autograd.grad(o, inputs, grad)
    theirs = torch.autograd.grad(expected, inputs, grad)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_formula_of_an_example() -> None:
    q, k, v = qkv(1, 3, 1, 4, 1)
    o = naive_softmax_attention(q, k, v)[0, :, 0, 0].tolist()
    queries, keys, values = q[0, :, 0].tolist(), k[0, :, 0].tolist(), v[0, :, 0, 0].tolist()
    for j in range(3):
        weights = [
            math.exp(sum(a * b for a, b in zip(queries[j], keys[i], strict=True)) / 2)
            for i in range(j + 1)
        ]
        total = sum(w * x for w, x in zip(weights, values, strict=False))
        assert o[j] == pytest.approx(total / sum(weights))


def test_step_with_rows_at_different_positions() -> None:
    q, k, v = qkv(4, 9, 2, 5, 3)
    positions = torch.tensor([0, 8, 3, 4])
    rows = torch.arange(4)
    o = softmax_attention_step(q[rows, positions], k, v, positions)
    assert_close(o, naive_softmax_attention(q, k, v)[rows, positions])


@pytest.mark.parametrize("form", [softmax_attention, naive_softmax_attention])
def test_invalid_shapes_raise(form: object) -> None:
    assert callable(form)
    q, k, v = qkv(2, 5, 2, 4, 4)
    with pytest.raises(ValueError, match="q and k must both be"):
        form(q, k[:, 1:], v)
    with pytest.raises(ValueError, match="v must be"):
        form(q, k, v[:, 1:])


def labels_of(config: ModelConfig, rows: int) -> Tensor | None:
    return torch.arange(rows) % 3 - 1 if config.classes else None


@torch.no_grad()
@every_config
def test_parallel_equals_recurrent_equals_prefilled(config: ModelConfig) -> None:
    """Rows are prefilled to different lengths, so one step has rows at different positions."""
    network = random_network(config)
    canvas, labels = random_canvas(config, 5), labels_of(config, 5)
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
                    assert (state[name][0, :modelled] != 0).all()
    together = torch.tensor([2, 5, 2, 9, 19]) * per_pixel
    states, _ = network.prefill(canvas, torch.tensor([2, 5, 2, 9, 19]), labels)
    assert all((state["attention.keys"][0, 2 * per_pixel - first] == 0).all() for state in states)
    parameters = network.step(canvas, together, states, labels)
    assert_close(parameters, parallel[torch.arange(5), together - first])
    assert all((state["attention.keys"][0, 2 * per_pixel - first] != 0).all() for state in states)


@torch.no_grad()
def test_weights_fit_a_linear_network_but_outputs_differ() -> None:
    softmax = random_network(CONFIGS["grey"])
    linear = LinearTransformer(dataclasses.replace(softmax.config, attention="linear")).double()
    linear.load_state_dict(softmax.state_dict())
    canvas = random_canvas(softmax.config, 1)
    assert not torch.allclose(softmax(canvas), linear(canvas))


def test_native_backend_names_unsupported_attention() -> None:
    network = random_network(CONFIGS["grey"], dtype=torch.float32)
    with pytest.raises(BackendError, match=r"native.*attention 'softmax'"):
        create_decoder(network, 1, "native")
    assert NativeDecoder.unsupported(network.config) == "attention 'softmax' (supported: linear)"
    assert create_decoder(network, 1, "auto").backend == "reference"


def test_triton_backend_names_unsupported_attention() -> None:
    pytest.importorskip("triton")
    from scanline.model.decoders.triton import TritonDecoder

    reason = TritonDecoder.unsupported(CONFIGS["grey"])
    assert reason == "attention 'softmax' (supported: linear)"


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
            assert (state[name][1, :2] != 0).all()
            state[name][1, :2] = 0
            assert torch.equal(state[name], empty[name])


def test_slots_are_limited_by_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reported number of slots fits, one more raises, and the server reports the reason."""
    config = CONFIGS["grey"]
    network = random_network(config, dtype=torch.float32)
    each = config.n_layers * config.steps * config.d_model * 2 * 4
    monkeypatch.setattr(
        decoder_memory, "free_memory", lambda: int(5.5 * each / decoder_memory.SHARE)
    )
    assert create_decoder(network, 5, "reference").max_slots == 5
    message = "6 slots .* softmax attention keeps every key and value .* at most 5$"
    with pytest.raises(BackendError, match=message):
        create_decoder(network, 6, "reference")
    linear = LinearTransformer(dataclasses.replace(config, attention="linear"))
    with pytest.raises(BackendError, match=r"MB each; .* at most \d+$"):
        create_decoder(linear, 10**6, "reference")
    app_state = AppState(settings(backend="auto", slots=6))
    app_state.open([load_checkpoint(save_tiny(tmp_path, "large", config))])
    assert not app_state.ready
    assert app_state.failure is not None
    assert "12 slots" in app_state.failure  # six more for small requests
    assert "use at most 5; set SCANLINE_SLOTS to 2" in app_state.failure


def test_served_model_draws_its_images(tmp_path: Path) -> None:
    """Draw two images, guided images and a completion over HTTP from a checkpoint."""
    checkpoint = load_checkpoint(save_tiny(tmp_path, "attending", SERVED))
    assert checkpoint.model.config == SERVED
    inputs = InputBatch.empty(SERVED, 2)
    inputs.label[:] = 1
    inputs.seed[:] = [image_seed(7, j) for j in range(2)]
    expected = {}
    for guidance in (1.0, 2.0):
        inputs.guidance[:] = guidance
        inputs.twin[:] = [2, 3] if guidance != 1 else -1
        decoder = create_decoder(checkpoint.model, 4, "reference")
        decoder.begin([0, 1], inputs)
        decoder.step([0, 1], SERVED.pixels)
        expected[guidance] = decoder.canvas[:2].copy()
    assert not np.array_equal(expected[1.0], expected[2.0])

    app_state = AppState(settings(backend="auto"))

    def open_models() -> None:
        app_state.open([checkpoint])

    app = create_app(app_state, open_models)
    with talking_to(app) as client:
        for guidance, images in expected.items():
            body = {"n": 2, "seed": 7, "label": 1, "guidance": guidance}
            reply = client.post("/v1/samples", json=body)
            assert reply.status_code == 200, reply.text
            for drawn, image in zip(reply.json()["images"], images, strict=True):
                png = decode_png(base64.b64decode(drawn["png"]), SERVED)
                assert np.array_equal(png, image)
        picture = random_picture(SERVED)
        reply = client.post(
            "/v1/completions", files={"image": encode(picture)}, data={"known_rows": "3"}
        )
        assert reply.status_code == 200, reply.text
        png = decode_png(base64.b64decode(reply.json()["images"][0]["png"]), SERVED)
        known = 3 * SERVED.width
        assert np.array_equal(png[:known, 0], np.asarray(picture).ravel()[:known])
