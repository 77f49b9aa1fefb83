"""Guidance, ``top_p``, classes by seed, particles: what may be asked, and what comes over HTTP."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture

from scanline.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    SamplingDefaults,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.decoders.factory import create_decoder
from scanline.model.sampling import SamplingError, SamplingOptions, SamplingParams, resolve
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

PLAIN = SamplingDefaults()
MINE = SamplingDefaults(guidance=2.5, top_p=0.9)


@pytest.mark.parametrize(
    ("asked", "defaults", "params"),
    [
        ({"label": None}, MINE, SamplingParams(label=-1, top_p=0.9)),
        ({"label": "1"}, MINE, SamplingParams(label=1, top_p=0.9, guidance=2.5)),
        ({"label": 2}, PLAIN, SamplingParams(label=2)),
        ({"label": "A frog"}, PLAIN, SamplingParams(label=2)),
        (
            {"label": " Random "},
            MINE,
            SamplingParams(label=-1, random_label=True, top_p=0.9, guidance=2.5),
        ),
        ({"label": 1, "guidance": 1.0, "top_p": 1.0}, MINE, SamplingParams(label=1)),
        (
            {"label": 1, "guidance": 0.0, "particles": 64},
            MINE,
            SamplingParams(label=1, top_p=0.9, guidance=0.0, particles=64),
        ),
        ({"label": None, "guidance": 1.0}, MINE, SamplingParams(label=-1, top_p=0.9)),
    ],
)
def test_wishes_and_what_is_left_to_the_model(
    asked: dict[str, Any], defaults: SamplingDefaults, params: SamplingParams
) -> None:
    assert resolve(GREY, defaults, SamplingOptions(**asked)) == params
    assert params.slots == params.particles * (1 if params.guidance == 1 else 2)


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"label": None, "guidance": 2.0}, "guidance", "needs a label"),
        ({"label": 1, "guidance": 10.5}, "guidance", "0 to 10"),
        ({"label": 1, "guidance": float("nan")}, "guidance", "0 to 10"),
        ({"label": None, "top_p": 0.0}, "top_p", "above 0"),
        ({"label": None, "top_p": float("nan")}, "top_p", "above 0"),
        ({"label": None, "particles": 65}, "particles", "1 to 64"),
        ({"label": "a toad"}, "label", "there are zero, one, a frog"),
    ],
)
def test_wishes_that_cannot_be(asked: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(SamplingError, match=says) as refused:
        resolve(GREY, PLAIN, SamplingOptions(**asked))
    assert refused.value.param == param


def test_a_model_without_classes_guides_nothing() -> None:
    with pytest.raises(SamplingError, match="classes") as refused:
        resolve(COLOUR, PLAIN, SamplingOptions(label="random"))
    assert refused.value.param == "label"
    with pytest.raises(SamplingError, match="classes") as refused:
        resolve(COLOUR, PLAIN, SamplingOptions(guidance=2.0))
    assert refused.value.param == "guidance"


def test_defaults_are_kept_in_the_checkpoint(tmp_path: Any) -> None:
    path = tmp_path / "mine.safetensors"
    save_checkpoint(path, tiny_model(), {"defaults": {"guidance": 2.5, "top_p": 0.9}})
    assert load_checkpoint(path).defaults == MINE
    assert Checkpoint("plain", tiny_model()).defaults == PLAIN
    for wrong in ({"guidance": 11}, {"top_p": 0}, {"heat": 1}, [2.0], {"guidance": "much"}):
        save_checkpoint(path, tiny_model(), {"defaults": wrong})
        with pytest.raises(CheckpointError, match="has invalid metadata"):
            load_checkpoint(path)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Give a client of a server whose grey model has 8 slots."""
    decoders = {
        "grey": create_decoder(tiny_model(GREY), 8, "native", 1),
        "colour": create_decoder(tiny_model(COLOUR), 8, "native", 1),
    }
    _, app = build(None, decoders)
    with talking_to(app) as http:
        yield http


def values(reply: httpx.Response) -> list[list[int]]:
    assert reply.status_code == 200, reply.text
    return [image["values"] for image in reply.json()["images"]]


def samples(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/samples", json={"output": "values"} | body)


def test_guided_images_are_others_and_the_same_alone(client: httpx.Client) -> None:
    plain = values(samples(client, n=6, seed=3, label=1))
    guided = values(samples(client, n=6, seed=3, label=1, guidance=3))
    assert plain != guided
    assert values(samples(client, n=1, seed=5, label=1, guidance=3)) == guided[2:3]
    assert values(samples(client, n=6, seed=3, label=1, guidance=1, top_p=1)) == plain
    assert values(samples(client, n=6, seed=3, label=1, top_p=0.3)) != plain


def test_random_labels_are_named(client: httpx.Client) -> None:
    reply = samples(client, n=12, seed=0, label="random", guidance=2)
    drawn, names = values(reply), [image["label"] for image in reply.json()["images"]]
    assert set(names) == set(GREY.classes)
    again = values(samples(client, n=1, seed=7, label=names[7], guidance=2))
    assert again == drawn[7:8]
    assert {image["label"] for image in samples(client, n=2).json()["images"]} == {None}


def test_what_cannot_be_drawn_is_refused(client: httpx.Client) -> None:
    check_error(samples(client, guidance=2), 400, param="guidance")
    check_error(samples(client, label=1, guidance=11), 400, param="guidance")
    check_error(samples(client, top_p=0), 400, param="top_p")
    check_error(samples(client, model="colour", label="random"), 400, param="label")
    check_error(samples(client, model="colour", guidance=2), 400, param="guidance")
    check_error(complete(client, particles=9), 400, param="particles")
    check_error(complete(client, particles=65), 400, param="particles")
    check_error(complete(client, particles=5, label=1, guidance=2), 400, param="particles")


def masked() -> tuple[bytes, NDArray[np.uint8], NDArray[np.bool_]]:
    """Give a picture with a transparent hole: PNG, values ``[T]`` and which are known."""
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


def test_a_hole_is_completed_by_particles(client: httpx.Client) -> None:
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
def test_a_stream_of_particles_ends_as_the_reply(client: httpx.Client, granularity: str) -> None:
    """Pixels that change are sent again: laid down by their position they make the same image."""
    expected = values(complete(client, n=2, seed=4, particles=4))
    reply = complete(client, n=2, seed=4, particles=4, stream="true", granularity=granularity)
    assert reply.status_code == 200
    laid = np.full((2, GREY.values), -1)
    for event in parse_sse(reply.content):
        for update in event.data["updates"] if event.name == "pixels" else []:
            first = update["position"] * GREY.channels
            laid[update["index"], first : first + len(update["values"])] = update["values"]
    assert laid.tolist() == expected


def test_models_say_how_they_are_drawn(client: httpx.Client) -> None:
    (grey, _) = client.get("/v1/models").json()["data"]
    assert (grey["guidance"], grey["top_p"]) == (1.0, 1.0)


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_what_single_precision_rounds_to_nothing_is_drawn(client: httpx.Client, model: str) -> None:
    """The smallest and the nearest to 1 of what may be asked: no number that a decoder refuses."""
    fields: dict[str, Any] = {"model": model, "n": 2, "seed": 1}
    values(samples(client, **fields, top_p=1e-300))
    likeliest = values(samples(client, **fields, temperature=0))
    assert values(samples(client, **fields, temperature=1e-300)) == likeliest
    assert values(samples(client, **fields, temperature=1e-40, top_p=0.9)) == likeliest
    if model == "grey":
        plain = values(samples(client, **fields, label=1, guidance=1))
        assert values(samples(client, **fields, label=1, guidance=1 + 1e-12)) == plain
        values(samples(client, **fields, label=1, guidance=9.5, temperature=1e-40))
