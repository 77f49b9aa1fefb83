"""Sampling options over HTTP: guidance, ``top_p``, random labels, particles."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture

from scanline.model.decoders.factory import create_decoder
from tests.service.fixtures import (
    COLOUR,
    GREY,
    build,
    check_error,
    random_picture,
    talking_to,
    tiny_model,
)
from tests.sse_client import parse_sse


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Yield a client of a server with 8 slots per model."""
    # A categorical head, whose temperature 0 is the limit of low temperatures.
    colour = replace(COLOUR, order="subpixel", positions="sinusoidal", head="categorical")
    decoders = {
        "grey": create_decoder(tiny_model(GREY), 8, "native", 1),
        "colour": create_decoder(tiny_model(colour), 8, "native", 1),
    }
    _, app = build(None, decoders)
    with talking_to(app) as http:
        yield http


def values(reply: httpx.Response) -> list[list[int]]:
    assert reply.status_code == 200, reply.text
    return [image["values"] for image in reply.json()["images"]]


def samples(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/samples", json={"output": "values"} | body)


def test_guidance_changes_images_reproducibly(client: httpx.Client) -> None:
    plain = values(samples(client, n=6, seed=3, label=1))
    guided = values(samples(client, n=6, seed=3, label=1, guidance=3))
    assert plain != guided
    assert values(samples(client, n=1, seed=5, label=1, guidance=3)) == guided[2:3]
    assert values(samples(client, n=6, seed=3, label=1, guidance=1, top_p=1)) == plain
    assert values(samples(client, n=6, seed=3, label=1, top_p=0.3)) != plain


def test_random_labels_are_in_the_reply(client: httpx.Client) -> None:
    reply = samples(client, n=12, seed=0, label="random", guidance=2)
    drawn, names = values(reply), [image["label"] for image in reply.json()["images"]]
    assert set(names) == set(GREY.classes)
    again = values(samples(client, n=1, seed=7, label=names[7], guidance=2))
    assert again == drawn[7:8]
    assert {image["label"] for image in samples(client, n=2).json()["images"]} == {None}


def test_invalid_sampling_options_are_refused(client: httpx.Client) -> None:
    check_error(samples(client, guidance=2), 400, param="guidance")
    check_error(samples(client, label=1, guidance=11), 400, param="guidance")
    check_error(samples(client, top_p=0), 400, param="top_p")
    check_error(samples(client, model="colour", label="random"), 400, param="label")
    check_error(samples(client, model="colour", guidance=2), 400, param="guidance")
    check_error(complete(client, particles=9), 400, param="particles")
    check_error(complete(client, particles=65), 400, param="particles")
    check_error(complete(client, particles=5, label=1, guidance=2), 400, param="particles")


def masked() -> tuple[bytes, NDArray[np.uint8], NDArray[np.bool_]]:
    """Return a picture with a transparent hole: PNG, values ``[T]`` and known pixels ``[T]``."""
    pixels = np.asarray(random_picture(GREY).convert("L"))
    known = np.ones(pixels.shape, np.bool_)
    known[2:4, 1:4] = False
    alpha = Picture.fromarray(known.astype(np.uint8) * 255)
    picture = Picture.merge("LA", [Picture.fromarray(pixels), alpha])
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue(), pixels.ravel(), known.ravel()


def complete(client: httpx.Client, **fields: Any) -> httpx.Response:
    data = {"output": "values", "model": "grey"} | {k: str(v) for k, v in fields.items()}
    return client.post("/v1/completions", files={"image": masked()[0]}, data=data)


def test_completions_with_particles(client: httpx.Client) -> None:
    _, pixels, known = masked()
    reply = complete(client, n=2, seed=1, particles=8)
    for image in reply.json()["images"]:
        assert (np.array(image["values"])[known] == pixels[known]).all()
        assert 1 <= image["effective_particles"] <= 8
        assert image["log_evidence"] < 0
    assert isinstance(reply.json()["warnings"], list)
    assert values(complete(client, n=1, seed=2, particles=8)) == values(reply)[1:]
    plain = complete(client, n=2, seed=1)
    assert values(plain) != values(reply)
    assert [image["effective_particles"] for image in plain.json()["images"]] == [None, None]
    guided = complete(client, n=1, seed=1, particles=4, label=1, guidance=2)
    assert values(guided)[0] != values(reply)[0]


@pytest.mark.parametrize("granularity", ["auto", "row", "pixel"])
def test_stream_with_particles_ends_with_the_same_image(
    client: httpx.Client, granularity: str
) -> None:
    """Changed pixels are sent again, and overwrite the old ones."""
    expected = values(complete(client, n=2, seed=4, particles=4))
    reply = complete(client, n=2, seed=4, particles=4, stream="true", granularity=granularity)
    assert reply.status_code == 200
    rebuilt = np.full((2, GREY.values), -1)
    for event in parse_sse(reply.content):
        for update in event.data["updates"] if event.name == "pixels" else []:
            first = update["position"] * GREY.channels
            rebuilt[update["index"], first : first + len(update["values"])] = update["values"]
    assert rebuilt.tolist() == expected


def test_models_list_their_sampling_defaults(client: httpx.Client) -> None:
    (grey, _) = client.get("/v1/models").json()["data"]
    assert (grey["guidance"], grey["top_p"]) == (1.0, 1.0)


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_options_at_the_limits_of_single_precision(client: httpx.Client, model: str) -> None:
    """Valid options must not round to values that a decoder refuses."""
    fields: dict[str, Any] = {"model": model, "n": 2, "seed": 1}
    values(samples(client, **fields, top_p=1e-300))
    likeliest = values(samples(client, **fields, temperature=0))
    assert values(samples(client, **fields, temperature=1e-300)) == likeliest
    assert values(samples(client, **fields, temperature=1e-40, top_p=0.9)) == likeliest
    if model == "grey":
        plain = values(samples(client, **fields, label=1, guidance=1))
        assert values(samples(client, **fields, label=1, guidance=1 + 1e-12)) == plain
        values(samples(client, **fields, label=1, guidance=9.5, temperature=1e-40))
