"""``/v1/score`` and ``/v1/distribution``: bits/dim of pictures, and the next values."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.pixel_bits import pixel_bits, pixel_distributions
from scanline.service.api import scoring
from scanline.service.state.app_state import AppState
from tests.conftest import assert_close, random_canvas, random_network
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    COLOUR,
    GREY,
    build,
    check_error,
    encode,
    random_picture,
    talking_to,
)

FLOAT32 = torch.float32
SUBPIXEL = dataclasses.replace(COLOUR, order="subpixel", positions="sinusoidal")
CONFIGS = [
    pytest.param(GREY, id="grey"),
    pytest.param(dataclasses.replace(GREY, head="logistic_mixture"), id="grey-mixture"),
    pytest.param(COLOUR, id="colour"),
    pytest.param(dataclasses.replace(SUBPIXEL, head="categorical"), id="subpixel"),
    pytest.param(dataclasses.replace(SUBPIXEL, input="previous", start="given"), id="given"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[AppState, httpx.Client]]:
    app_state, app = build()
    with talking_to(app) as client:
        yield app_state, client


@pytest.fixture
def client(server: tuple[AppState, httpx.Client]) -> httpx.Client:
    return server[1]


@pytest.fixture
def networks(server: tuple[AppState, httpx.Client]) -> dict[str, LinearTransformer]:
    return {name: loaded.checkpoint.model for name, loaded in server[0].models.items()}


def score(client: httpx.Client, *pictures: bytes, **fields: str) -> httpx.Response:
    files = [("image", (f"{j}.png", data, "image/png")) for j, data in enumerate(pictures)]
    return client.post("/v1/score", files=files, data=fields)


@pytest.mark.parametrize("config", CONFIGS)
def test_distributions_agree_with_the_pixel_bits(config: ModelConfig) -> None:
    """The bits of a pixel are the sum over its values, each under its distribution."""
    network = random_network(config).float()
    label = 1 if config.classes else -1
    canvas = random_canvas(config, 1).numpy()
    values = [int(v) for v in canvas.ravel()]
    bits = pixel_bits(network, canvas, label)[0]
    for position in (0, 1, config.width, config.pixels - 1):
        total, first = 0.0, position * config.channels
        prefix = values[: first + config.channels - 1]
        expected, unconditional = pixel_distributions(network, prefix, [label, -1])
        assert expected.shape == unconditional.shape == (config.channels, 256)
        assert np.allclose(expected.sum(1, dtype=np.float64), 1, rtol=0, atol=1e-5)
        for channel in range(config.channels):
            k = first + channel
            alone = pixel_distributions(network, values[:k], [label])[0]
            assert alone.shape == (channel + 1, 256)
            assert_close(torch.from_numpy(alone[-1]), torch.from_numpy(expected[channel]), FLOAT32)
            if k or config.start == "learned":  # a given first value takes no bits
                total -= float(np.log2(expected[channel, values[k]]))
        alone = pixel_distributions(network, prefix, [-1])[0]
        assert_close(torch.from_numpy(alone), torch.from_numpy(unconditional), FLOAT32)
        assert_close(torch.tensor(total), torch.tensor(float(bits[position])), FLOAT32)


def test_given_first_value_has_probability_1() -> None:
    config = dataclasses.replace(
        GREY, input="previous", order="subpixel", start="given", first_value=7, classes=()
    )
    assert pixel_distributions(random_network(config).float(), [], [-1, -1])[:, 0, 7].tolist() == [
        1,
        1,
    ]


def test_likelihoods_are_computed_on_the_decoders_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network on the device is prepared once, before the first request."""
    decoder, on_device = FakeDecoder(GREY, 1), random_network(GREY, seed=5).float()
    decoder.likelihood_device = torch.device("meta")
    devices: list[torch.device] = []

    def prepare(model: LinearTransformer, device: torch.device) -> LinearTransformer:
        devices.append(device)
        return on_device

    monkeypatch.setattr("scanline.service.state.registry.likelihood_network", prepare)
    _, app = build(decoders={"grey": decoder})
    picture = random_picture(GREY, 1)
    canvas = np.asarray(picture).reshape(1, GREY.pixels, 1)
    with talking_to(app) as client:
        assert devices == [decoder.likelihood_device]
        bits = score(client, encode(picture)).json()["data"][0]["bits"]
        assert bits == pytest.approx(float(pixel_bits(on_device, canvas, -1).sum()), rel=1e-4)
        reply = client.post("/v1/distribution", json={"values": [3]}).json()
        expected = pixel_distributions(on_device, [3], [-1])[0, -1].tolist()
        assert reply["probabilities"] == pytest.approx(expected, rel=1e-4)
    assert len(devices) == 1


@pytest.mark.parametrize(("model", "config"), [("grey", GREY), ("colour", COLOUR)])
def test_scores_are_exact(
    client: httpx.Client, networks: dict[str, LinearTransformer], model: str, config: ModelConfig
) -> None:
    pictures = [random_picture(config, seed) for seed in range(3)]
    reply = score(client, *map(encode, pictures), model=model, per_pixel="true")
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert (body["model"], body["width"], body["height"]) == (model, config.width, config.height)
    canvases = np.stack([np.asarray(p).reshape(config.pixels, config.channels) for p in pictures])
    with torch.inference_mode():
        expected = networks[model].bits(torch.from_numpy(canvases)).numpy()
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    # Replies are rounded, and the errors of the terms add up.
    for row, bits in zip(body["data"], expected, strict=True):
        assert row["pixel_bits"] == pytest.approx(bits.tolist(), rel=1e-3, abs=1e-3)
        assert row["bits"] == pytest.approx(float(bits.sum()), rel=1e-4)
        assert row["bits_per_dim"] == pytest.approx(float(bits.sum()) / config.dims, abs=1e-3)


def test_pixel_bits_are_optional(client: httpx.Client) -> None:
    assert score(client, encode(random_picture())).json()["data"][0]["pixel_bits"] is None


def test_score_of_a_sample_equals_its_bits_per_dim(client: httpx.Client) -> None:
    drawn = client.post("/v1/samples", json={"label": "one", "seed": 3}).json()["images"][0]
    reply = score(client, base64.b64decode(drawn["png"]), label="one")
    assert reply.json()["data"][0]["bits_per_dim"] == pytest.approx(drawn["bits_per_dim"], abs=1e-3)


def test_label_changes_the_score(client: httpx.Client) -> None:
    picture = encode(random_picture())
    bits = {
        label: score(client, picture, label=label).json()["data"][0]["bits"]
        for label in ("zero", "one", "a frog")
    }
    assert len(set(bits.values())) == 3


def test_pictures_of_another_size_need_fit(client: httpx.Client) -> None:
    large = encode(Image.new("L", (60, 72), 9))
    assert "fit" in check_error(score(client, large), 400, "invalid_image", "image")
    assert score(client, large, fit="cover").status_code == 200


def test_errors_number_the_invalid_picture(client: httpx.Client) -> None:
    reply = score(client, encode(random_picture()), b"no picture")
    assert check_error(reply, 400, "invalid_image", "image").startswith("image 1: ")
    alone = check_error(score(client, b"no picture"), 400, "invalid_image", "image")
    assert alone.startswith("the file is not an image")


def test_errors_of_score(client: httpx.Client) -> None:
    picture = encode(random_picture())
    check_error(client.post("/v1/score", data={"model": "grey"}), 400, "missing", "image")
    check_error(score(client, picture, model="x"), 404, "model_not_found", "model")
    check_error(score(client, picture, label="x"), 400, "unknown_class", "label")
    check_error(score(client, picture, colour="x"), 400, "extra_forbidden", "colour")
    check_error(score(client, *[picture] * 257), 400, "too_many", "image")
    assert score(client, *[picture] * 256).status_code == 200


@pytest.mark.parametrize(("model", "place"), [("grey", (8, 0)), ("colour", (2, 2))])
def test_the_distribution_of_the_next_value(
    client: httpx.Client,
    networks: dict[str, LinearTransformer],
    model: str,
    place: tuple[int, int],
) -> None:
    values = [int(v) for v in np.asarray(random_picture(COLOUR)).ravel()[:8]]
    reply = client.post("/v1/distribution", json={"model": model, "values": values})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert (body["model"], body["position"], body["channel"]) == (model, *place)
    expected = pixel_distributions(networks[model], values, [-1])[0, -1]
    assert body["probabilities"] == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("model", "channels", "label"), [("grey", 1, "one"), ("colour", 3, None)])
def test_one_call_returns_all_channels_of_a_pixel(
    client: httpx.Client, model: str, channels: int, label: str | None
) -> None:
    """They are those of one call per channel, with and without the class."""
    values = [int(v) for v in np.asarray(random_picture(COLOUR)).ravel()[: 6 + channels - 1]]
    body = {"model": model, "values": values, "label": label, "unconditional": True}
    reply = client.post("/v1/distribution/pixel", json=body)
    assert reply.status_code == 200, reply.text
    pixel = reply.json()
    assert (pixel["model"], pixel["position"]) == (model, 6 // channels)
    assert [row["channel"] for row in pixel["channels"]] == list(range(channels))
    for row in pixel["channels"]:
        so_far = {"model": model, "values": values[: 6 + row["channel"]]}
        for kind, named in (("probabilities", {"label": label}), ("unconditional", {})):
            alone = client.post("/v1/distribution", json=so_far | named).json()
            assert row[kind] == pytest.approx(alone["probabilities"], rel=1e-3, abs=1e-6)
        assert (row["probabilities"] == row["unconditional"]) == (label is None)


def test_pixel_distribution_ends_at_the_next_value(client: httpx.Client) -> None:
    for count, channels in ((0, 1), (3, 1), (4, 2), (5, 3)):
        body = {"model": "colour", "values": [9] * count}
        pixel = client.post("/v1/distribution/pixel", json=body).json()
        assert (pixel["position"], len(pixel["channels"])) == (count // 3, channels)
        assert all(row["unconditional"] is None for row in pixel["channels"])


def test_long_images_take_their_turn_for_each_label(
    server: tuple[AppState, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task runs at most ``STEPS_PER_CALL`` network steps, or one image."""
    app_state, client = server
    run, tasks = app_state.score_pool.run, []

    async def count(*arguments: Any) -> Any:
        tasks.append(arguments)
        return await run(*arguments)

    monkeypatch.setattr(app_state.score_pool, "run", count)
    body = {"values": [], "label": "one", "unconditional": True}
    whole = client.post("/v1/distribution/pixel", json=body).json()
    assert len(tasks) == 1
    monkeypatch.setattr(scoring, "STEPS_PER_CALL", GREY.width * GREY.height)
    (row,) = client.post("/v1/distribution/pixel", json=body).json()["channels"]
    assert len(tasks) == 3
    assert row["probabilities"] == pytest.approx(whole["channels"][0]["probabilities"], rel=1e-3)
    assert row["unconditional"] == pytest.approx(whole["channels"][0]["unconditional"], rel=1e-3)


@pytest.mark.parametrize("path", ["distribution", "distribution/pixel"])
def test_errors_of_distribution(client: httpx.Client, path: str) -> None:
    def ask(**body: object) -> httpx.Response:
        return client.post(f"/v1/{path}", json=body)

    assert "at most 29" in check_error(ask(values=[0] * 30), 400, "too_many", "values")
    check_error(ask(values=[256]), 400, param="values")
    check_error(ask(), 400, "missing", "values")
    check_error(ask(values=[], label="x"), 400, "unknown_class", "label")
    check_error(ask(values=[], temperature=1), 400, "extra_forbidden", "temperature")


def test_full_score_queue_is_429(
    server: tuple[AppState, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    app_state, client = server
    monkeypatch.setattr(app_state.score_pool, "max_queued", 0)
    monkeypatch.setattr(app_state.score_pool, "_free", 0)  # all threads are busy
    reply = client.post("/v1/distribution", json={"values": []})
    check_error(reply, 429, "scores_full")
    assert reply.headers["retry-after"] == "1"


def test_closing_server_refuses_scores() -> None:
    app_state, app = build()
    with talking_to(app) as client:
        assert score(client, encode(random_picture())).status_code == 200
        for loaded in app_state.models.values():
            loaded.engine.queue.close(60)
        check_error(client.post("/v1/distribution", json={"values": []}), 503, "closing")
        check_error(score(client, encode(random_picture())), 503, "closing")
