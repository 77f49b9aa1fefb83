"""OpenAI's stock client against a real server on a real socket."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from PIL import Image

from scanline.service.generation import FinishReason, Spec
from scanline.service.http.waiting import news
from scanline.service.server import Scanline
from tests.service_fixtures import (
    COLOUR,
    GREY,
    FakeDecoder,
    build,
    check_error,
    decode_png,
    encode,
    fake_image,
    idle,
    listening,
    parse_sse,
    random_picture,
    until,
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Scanline, str]]:
    scanline, app = build(decoders={"grey": FakeDecoder(GREY, 8), "colour": FakeDecoder(COLOUR, 8)})
    with listening(app, lambda: scanline.ready) as url:
        yield scanline, url


def stock(url: str, key: str = "x") -> openai.OpenAI:
    """Give the stock client, to be closed after use, that does not try again by itself."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(server: tuple[Scanline, str]) -> Iterator[openai.OpenAI]:
    with stock(server[1]) as opened:
        yield opened


@pytest.fixture
def http(server: tuple[Scanline, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server[1]) as opened:
        yield opened


def pixels_of(b64: str | None, config: Any = GREY) -> NDArray[np.uint8]:
    assert b64 is not None
    return decode_png(base64.b64decode(b64), config)


def masked(picture: Image.Image, paint: NDArray[np.bool_]) -> bytes:
    """Give a mask of the picture's size, transparent where ``paint`` is true."""
    mask = np.full((*paint.shape, 4), 255, np.uint8)
    mask[..., 3] = np.where(paint, 0, 255)
    assert mask.shape[:2] == (picture.height, picture.width)
    return encode(Image.fromarray(mask))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["grey", "colour"]
    assert client.models.retrieve("colour").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-image-1")


@pytest.mark.parametrize(
    ("prompt", "label"),
    [
        ("", -1), ("  ", -1), ("one", 1), ("An One.", 1), ("a frog", 2), ("the zero", 0), ("2", 2),
        ("draw a frog", 2), ("Please draw me the digit one!", 1), ('a picture of "zero"', 0),
        ("one, please", 1),
    ],
)  # fmt: skip
def test_a_prompt_names_a_class(client: openai.OpenAI, prompt: str, label: int) -> None:
    reply = client.images.generate(prompt=prompt, extra_body={"seed": 5})
    assert reply.data is not None
    expected = fake_image(GREY, Spec(n=1, seed=5, label=label), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


NUMBERS = replace(GREY, classes=tuple("0123456789"))
ANIMALS = replace(COLOUR, classes=("cat", "frog"))


def test_a_prompt_finds_the_model_that_knows_it() -> None:
    models = {"numbers": FakeDecoder(NUMBERS, 4), "animals": FakeDecoder(ANIMALS, 4)}
    scanline, app = build(decoders={**models})
    with listening(app, lambda: scanline.ready) as url, stock(url) as client:
        for prompt, config, label in (
            ("draw a 7", NUMBERS, 7), ("Seven", NUMBERS, 7), ("the digit 7", NUMBERS, 7),
            ("handwritten digit three", NUMBERS, 3), ("a frog", ANIMALS, 1), ("Cat.", ANIMALS, 0),
        ):  # fmt: skip
            data = client.images.generate(prompt=prompt, extra_body={"seed": 5}).data
            assert data is not None
            expected = fake_image(config, Spec(n=1, seed=5, label=label), 0)
            assert np.array_equal(pixels_of(data[0].b64_json, config), expected), prompt
        assert client.images.generate(prompt="1", model="animals").data  # by its number
        for prompt, model, says in (
            ("a frog", "numbers", "0, 1, 2, 3"), ("a dog", None, r"cat, frog \(animals\)"),
            ("draw a", None, "no model here understands"), ("two frogs", None, "animals"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=says) as refused:
                client.images.generate(prompt=prompt, model=model or openai.omit)
            assert refused.value.param == "prompt"


def test_several_images_name_their_seeds(client: openai.OpenAI) -> None:
    reply = client.images.generate(prompt="one", n=3, extra_body={"seed": 40, "temperature": 0.5})
    assert reply.data is not None
    spec = Spec(n=3, seed=40, label=1, temperature=0.5)
    for j, item in enumerate(reply.data):
        assert item.model_extra == {"seed": 40 + j, "bits_per_dim": pytest.approx(1.0)}
        assert np.array_equal(pixels_of(item.b64_json), fake_image(GREY, spec, j))
    assert reply.created > 1_600_000_000
    assert (reply.background, reply.output_format, reply.size) == ("opaque", "png", "5x6")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 90)
    assert reply.usage.total_tokens == 90
    assert (reply.model_extra or {})["warnings"] == []


def test_one_image_of_a_reply_can_be_drawn_again_alone(client: openai.OpenAI) -> None:
    many = client.images.generate(prompt="", n=4).data
    assert many is not None
    seed = (many[3].model_extra or {})["seed"]
    again = client.images.generate(prompt="", extra_body={"seed": seed}).data
    assert again is not None
    assert again[0].b64_json == many[3].b64_json


def test_another_model_and_size(client: openai.OpenAI) -> None:
    reply = client.images.generate(
        model="colour", prompt="", size="30x40",
        extra_body={"seed": 1},
    )  # fmt: skip
    assert reply.data is not None
    picture = Image.open(io.BytesIO(base64.b64decode(reply.data[0].b64_json or "")))
    assert (picture.size, picture.mode, reply.size) == ((30, 40), "RGB", "30x40")
    small = np.asarray(picture)[::10, ::10].reshape(COLOUR.pixels, 3)
    assert np.array_equal(small, fake_image(COLOUR, Spec(n=1, seed=1), 0))


@pytest.mark.parametrize("model", ["grey", "colour"])
@pytest.mark.parametrize("size", ["256x256", "512x512", "1024x1024", "1536x1024"])
def test_openais_sizes_have_the_image_in_their_middle(
    client: openai.OpenAI, model: str, size: str
) -> None:
    config = {"grey": GREY, "colour": COLOUR}[model]
    width, height = map(int, size.split("x"))
    reply = client.images.generate(model=model, prompt="", extra_body={"seed": 1, "size": size})
    assert reply.data is not None
    data = base64.b64decode(reply.data[0].b64_json or "")
    picture = np.asarray(Image.open(io.BytesIO(data))).reshape(height, width, -1)
    assert reply.size == size
    scale = min(width // config.width, height // config.height)
    left, top = (width - scale * config.width) // 2, (height - scale * config.height) // 2
    inside = picture[top : top + scale * config.height, left : left + scale * config.width]
    drawn = fake_image(config, Spec(n=1, seed=1), 0)
    assert np.array_equal(inside[::scale, ::scale].reshape(config.pixels, -1), drawn)
    assert inside.astype(int).sum() == picture.astype(int).sum()  # around it all is black
    warnings = (reply.model_extra or {})["warnings"]
    exact = (scale * config.width, scale * config.height) == (width, height)
    assert [warning.split(":")[0] for warning in warnings] == ([] if exact else ["size"])
    # And it can be edited, its middle as if it had never been enlarged.
    paint = np.zeros((height, width), bool)
    paint[top + scale * (config.height - 1) : top + scale * config.height] = True
    edited = client.images.edit(
        model=model, image=data, mask=masked(Image.open(io.BytesIO(data)), paint), prompt="",
        extra_body={"seed": 9},
    )  # fmt: skip
    assert edited.data is not None
    known = np.arange(config.pixels) < config.pixels - config.width
    spec = Spec(n=1, seed=9, canvas=drawn, known=known)
    expected = fake_image(config, spec, 0)
    assert np.array_equal(pixels_of(edited.data[0].b64_json, config), expected)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_formats(client: openai.OpenAI, kind: Any) -> None:
    reply = client.images.generate(prompt="", output_format=kind, output_compression=50)
    assert reply.data is not None
    picture = Image.open(io.BytesIO(base64.b64decode(reply.data[0].b64_json or "")))
    assert picture.format == kind.upper()
    assert reply.output_format == kind
    warned = (reply.model_extra or {})["warnings"]
    assert len(warned) == (kind == "png")


def test_what_has_no_effect_is_said(client: openai.OpenAI) -> None:
    reply = client.images.generate(
        prompt="", quality="high", style="vivid", moderation="low", user="me", partial_images=2,
        background="opaque", response_format="b64_json", size="auto",
    )  # fmt: skip
    warnings = (reply.model_extra or {})["warnings"]
    named = {warning.split(":")[0] for warning in warnings}
    assert named == {"quality", "style", "moderation", "user", "partial_images"}
    silent = client.images.generate(prompt="", quality="auto", moderation="auto")
    assert (silent.model_extra or {})["warnings"] == []


@pytest.mark.parametrize(
    ("param", "value", "says"),
    [
        ("prompt", "a castle", "zero, one, a frog"),
        ("size", "1024x1025", "5x6"),
        ("size", "4x5", "5x6"),
        ("size", "2500x3000", "2048"),
        ("size", "10x6", "whole multiple"),
        ("response_format", "url", "b64_json"),
        ("background", "transparent", "every pixel"),
        ("n", 0, "greater"),
        ("n", 257, "256"),
        ("temperature", 3, "less"),
        ("seed", -1, "greater"),
        ("output_format", "gif", "png"),
        ("resolution", 5, "no such field"),
    ],
)
def test_what_cannot_be_is_refused(
    client: openai.OpenAI, param: str, value: object, says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(**{"prompt": "", "extra_body": {param: value}})  # type: ignore[call-overload]
    assert refused.value.param == param
    assert says in refused.value.message


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there are: grey, colour"):
        client.images.generate(model="dall-e-3", prompt="")


def test_null_is_left_out(http: httpx.Client) -> None:
    body = {"prompt": "", "n": None, "size": None, "seed": None, "quality": None, "stream": None}
    assert http.post("/v1/images/generations", json=body).status_code == 200


# --- edits --------------------------------------------------------------------------------------


def expected_edit(picture: Image.Image, paint: NDArray[np.bool_], n: int = 1) -> Spec:
    canvas = np.asarray(picture).reshape(GREY.pixels, 1)
    return Spec(n=n, seed=9, canvas=canvas, known=~paint.reshape(-1))


def test_an_edit_paints_where_the_mask_is_transparent(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[2:4, 1:3] = True
    reply = client.images.edit(
        image=encode(picture), mask=masked(picture, paint), prompt="", n=2, extra_body={"seed": 9}
    )
    assert reply.data is not None
    spec = expected_edit(picture, paint, 2)
    for j, item in enumerate(reply.data):
        drawn = pixels_of(item.b64_json)
        assert np.array_equal(drawn, fake_image(GREY, spec, j))
        assert spec.canvas is not None
        assert np.array_equal(drawn[spec.known], spec.canvas[spec.known])
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (22, 38)


def test_an_edit_scales_16_bits_and_refuses_32(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[3:] = True
    mask = masked(picture, paint)
    wide = Image.fromarray(np.asarray(picture).astype(np.uint16) << 8)
    reply = client.images.edit(image=encode(wide), mask=mask, prompt="", extra_body={"seed": 9})
    assert reply.data is not None
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)
    for dtype in (np.int32, np.float32):
        wider = encode(Image.fromarray(np.asarray(picture).astype(dtype)), "TIFF")
        with pytest.raises(openai.BadRequestError, match="8 or 16 bits") as refused:
            client.images.edit(image=wider, mask=mask, prompt="")
        assert (refused.value.code, refused.value.param) == ("invalid_image", "image")


@pytest.mark.parametrize("factor", [1, 4])
@pytest.mark.parametrize("where", ["mask", "picture"])
def test_only_what_is_wholly_transparent_is_painted(
    client: openai.OpenAI, where: str, factor: int
) -> None:
    """In an enlarged picture, a pixel with a part that is."""
    alpha = np.full((6 * factor, 5 * factor), 255, np.uint8)
    alpha[: 2 * factor] = np.resize([1, 64, 127, 128, 254], alpha[: 2 * factor].shape)
    alpha[3 * factor, 2 * factor] = alpha[-1, -1] = 0
    grey = Image.new("L", alpha.shape[::-1], 90)
    sent = encode(Image.merge("LA", (grey, Image.fromarray(alpha))))
    beside = where == "mask"
    reply = client.images.edit(
        image=encode(grey) if beside else sent, mask=sent if beside else openai.omit, prompt="",
        n=8, extra_body={"seed": 9},
    )  # fmt: skip
    assert reply.data is not None
    drawn = np.stack([pixels_of(item.b64_json).ravel() for item in reply.data])
    assert np.flatnonzero(drawn.std(0)).tolist() == [17, 29]  # the same in all: known


def test_an_edit_without_a_mask_paints_the_transparent_part(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[3:] = True
    alpha = Image.fromarray(np.where(paint, 0, 255).astype(np.uint8))
    cut = Image.merge("LA", (picture, alpha))
    reply = client.images.edit(
        image=[("cut.png", encode(cut), "image/png")], prompt="", extra_body={"seed": 9}
    )
    assert reply.data is not None
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


def test_an_enlarged_reply_can_be_edited(client: openai.OpenAI) -> None:
    drawn = client.images.generate(
        prompt="",
        size="50x60",
        extra_body={"seed": 2},
    ).data
    assert drawn is not None
    large = base64.b64decode(drawn[0].b64_json or "")
    paint = np.zeros((60, 50), bool)
    paint[35:, :] = True  # the fourth row in part: painted whole
    reply = client.images.edit(
        image=large, mask=masked(Image.open(io.BytesIO(large)), paint), prompt="",
        extra_body={"seed": 9},
    )  # fmt: skip
    assert reply.data is not None
    original = Image.fromarray(fake_image(GREY, Spec(n=1, seed=2), 0).reshape(6, 5))
    expected = fake_image(GREY, expected_edit(original, np.repeat(np.arange(6) > 2, 5)), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


def test_an_edit_in_json_takes_data_urls(http: httpx.Client) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[5] = True

    def source(data: bytes) -> dict[str, str]:
        return {"image_url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}

    body = {
        "prompt": "", "seed": 9, "images": [source(encode(picture))],
        "mask": source(masked(picture, paint)),
    }  # fmt: skip
    reply = http.post("/v1/images/edits", json=body)
    assert reply.status_code == 200, reply.text
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.json()["data"][0]["b64_json"]), expected)
    for images in ([{"image_url": "https://x.test/a.png"}], [{"file_id": "x"}], "x", [3]):
        wrong = http.post("/v1/images/edits", json={"prompt": "", "images": images})
        check_error(wrong, 400, "invalid_image", "images")


def test_edits_that_cannot_be(client: openai.OpenAI, http: httpx.Client) -> None:
    picture = random_picture()

    def refuse(says: str, image: Any, **fields: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=says) as refused:
            client.images.edit(image=image, prompt=fields.pop("prompt", ""), **fields)
        assert refused.value.param in ("image", "mask", "prompt", "n")

    refuse("nothing to paint", encode(picture))
    refuse("one picture", [encode(picture), encode(picture)])
    refuse("no picture of a kind", b"text")
    refuse("whole multiple", encode(Image.new("L", (7, 7))))
    refuse("the mask is 2", encode(picture), mask=encode(Image.new("LA", (2, 2))))
    refuse("understands sentences", encode(picture), prompt="a castle")
    refuse("n: ", encode(picture), n=0)
    url = "/v1/images/edits"
    check_error(http.post(url, data={"prompt": ""}), 400)
    check_error(http.post(url, content=b"{", headers={"content-type": "application/json"}), 400)
    check_error(http.post(url, json=[1]), 400, "json_invalid")
    check_error(http.post(url, json={"prompt": ""}), 400, "missing", "image")
    files = {"image": encode(picture)}
    check_error(http.post(url, data={"hat": "x", "prompt": ""}, files=files), 400, param="hat")
    check_error(http.post(url, data={}, files=files), 400, "missing", "prompt")
    check_error(http.post(url, data={"image": "x"}, files={"mask": b""}), 400, param="image")


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_shows_looks_then_the_image(client: openai.OpenAI) -> None:
    stream = client.images.generate(
        prompt="one", n=2, stream=True, partial_images=2, extra_body={"seed": 3}
    )
    events = list(stream)
    spec = Spec(n=2, seed=3, label=1)
    for j in range(2):
        mine = [event for event in events if (event.model_extra or {})["index"] == j]
        assert [event.type for event in mine] == [
            "image_generation.partial_image",
            "image_generation.partial_image",
            "image_generation.completed",
        ]
        expected = fake_image(GREY, spec, j)
        for k, event in enumerate(mine):
            assert (event.model_extra or {})["seed"] == 3 + j
            decided = 10 * (k + 1)
            drawn = pixels_of(event.b64_json)
            assert np.array_equal(drawn[:decided], expected[:decided])
            assert not drawn[decided:].any()
            if event.type == "image_generation.partial_image":
                assert event.partial_image_index == k
            else:
                assert event.usage.output_tokens == 30


def test_a_streamed_edit_keeps_what_is_known(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[2:4] = True
    stream = client.images.edit(
        image=encode(picture), mask=masked(picture, paint), prompt="", stream=True,
        partial_images=1, extra_body={"seed": 9},
    )  # fmt: skip
    partial, completed = list(stream)
    assert partial.type == "image_edit.partial_image"
    assert completed.type == "image_edit.completed"
    spec = expected_edit(picture, paint)
    assert spec.canvas is not None
    assert np.array_equal(pixels_of(partial.b64_json)[20:], spec.canvas[20:])
    assert np.array_equal(pixels_of(completed.b64_json), fake_image(GREY, spec, 0))


def test_comments_keep_a_stream_open_and_the_client_sees_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.openai.events.KEEP_ALIVE_SECONDS", 0.05)
    decoder, go_on = FakeDecoder(GREY, 2), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    scanline, app = build(decoders={"grey": decoder})
    quiet: list[float | None] = []

    async def counted(*arguments: Any) -> bool:
        told = await news(*arguments)
        if not told:  # so a comment is sent
            quiet.append(arguments[2])
        if len(quiet) == 3:
            go_on.set()
        return told

    monkeypatch.setattr("scanline.service.openai.events.news", counted)
    with listening(app, lambda: scanline.ready) as url, stock(url) as client:
        stream = client.images.generate(prompt="", stream=True, partial_images=1)
        types = [event.type.split(".")[1] for event in stream]
    assert types == ["partial_image", "completed"]
    assert len(quiet) >= 3


def test_a_stream_has_neither_ids_nor_comments(http: httpx.Client) -> None:
    body = {"prompt": "", "stream": True, "n": 3}
    reply = http.post("/v1/images/generations", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"\n:" not in b"\n" + reply.content
    events = parse_sse(reply.content)
    assert [event.name for event in events] == ["image_generation.completed"] * 3
    assert all(event.id is None and event.data["type"] == event.name for event in events)


def test_leaving_a_stream_cancels_it_whatever_the_grace() -> None:
    decoder, left = FakeDecoder(GREY, 2), threading.Event()

    def hold(slots: list[int]) -> None:
        left.wait()

    decoder.before_step = hold
    scanline, app = build({"grace_seconds": 3600}, {"grey": decoder})
    with listening(app, lambda: scanline.ready) as url, stock(url) as client:
        try:
            stream = client.images.generate(prompt="", n=3, stream=True, partial_images=3)
            identifier = stream.response.headers["x-generation-id"]
            generation = scanline.models["grey"].engine.queue.find(identifier)
            assert generation is not None
            until(lambda: generation.readers == 1)
            stream.close()
            until(lambda: generation.readers == 0, "the server's noticing")
        finally:
            left.set()
        until(lambda: generation.finished)
        assert {image.finish_reason for image in generation.images} == {FinishReason.CANCELLED}
        until(lambda: idle(scanline))


def test_an_error_in_a_stream_is_raised(server: tuple[Scanline, str]) -> None:
    decoder = FakeDecoder(GREY, 2)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("broken")

    decoder.before_step = fail
    scanline, app = build(decoders={"grey": decoder})
    with listening(app, lambda: scanline.ready) as url, stock(url) as client:
        with pytest.raises(openai.APIError, match="drawing failed"):
            list(client.images.generate(prompt="", stream=True))
        with pytest.raises(openai.InternalServerError, match="drawing failed"):
            client.images.generate(prompt="")


# --- errors and retries -------------------------------------------------------------------------


def test_a_full_queue_is_429_and_the_client_tries_again() -> None:
    decoder, hold = FakeDecoder(GREY, 1), threading.Event()
    decoder.before_step = lambda slots: (hold.wait(), None)[1]
    scanline, app = build({"max_waiting": 1, "max_images": 1}, {"grey": decoder})
    seen: list[int] = []

    def release(response: Any) -> None:
        seen.append(response.status_code)
        hold.set()

    with listening(app, lambda: scanline.ready) as url:
        others = [
            threading.Thread(target=httpx.post, args=(f"{url}/v1/samples",), kwargs={"json": {}})
            for _ in range(2)
        ]
        others[0].start()
        until(lambda: scanline.models["grey"].engine.slots_in_use == 1)
        others[1].start()
        until(lambda: scanline.models["grey"].engine.queue.waiting == 1)
        with stock(url) as client, pytest.raises(openai.RateLimitError) as full:
            client.images.generate(prompt="")
        assert (full.value.code, full.value.type) == ("queue_full", "rate_limit_error")
        assert int(full.value.response.headers["retry-after"]) >= 1
        http = openai.DefaultHttpxClient(event_hooks={"response": [release]})
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", http_client=http) as client:
            assert client.images.generate(prompt="").data
        for other in others:
            other.join()
    assert seen == [429, 200]


def test_the_key_is_wanted() -> None:
    scanline, app = build({"api_key": "secret"}, {"grey": FakeDecoder(GREY, 2)})
    with listening(app, lambda: scanline.ready) as url:
        with stock(url, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.images.generate(prompt="")
        with stock(url, "secret") as client:
            assert client.images.generate(prompt="").data


async def _draw_beside(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
        stream = await client.images.generate(prompt="", stream=True, partial_images=1)
        return [event.type async for event in stream]


def test_the_async_client(server: tuple[Scanline, str]) -> None:
    assert asyncio.run(_draw_beside(server[1])) == [
        "image_generation.partial_image",
        "image_generation.completed",
    ]


def test_the_schema_describes_both_bodies_of_an_edit(http: httpx.Client) -> None:
    schema = http.get("/openapi.json").json()
    content = schema["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    assert "image" in content["multipart/form-data"]["schema"]["required"]
    assert json.dumps(content).count("$ref") == 0
