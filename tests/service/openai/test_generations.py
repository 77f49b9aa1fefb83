"""``/v1/images/generations`` with OpenAI's client."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from scanline.model.noise import image_seed, random_label
from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import GenerationSpec
from scanline.service.http.errors import ApiError
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.openai.prompts import parse_prompt
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder, fake_image
from tests.service.fixtures import (
    COLOUR,
    GREY,
    build,
    listening,
    talking_to,
)
from tests.service.openai.fixtures import masked, openai_client, pixels_of


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
        ("one, please", 1), ("One, Please", 1),
    ],
)  # fmt: skip
def test_prompt_names_a_class(client: openai.OpenAI, prompt: str, label: int) -> None:
    reply = client.images.generate(prompt=prompt, extra_body={"seed": 5})
    assert reply.data is not None
    expected = fake_image(
        GREY, GenerationSpec(n=1, seed=5, sampling=SamplingParams(label=label)), 0
    )
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


def test_prompt_random_selects_a_class_by_each_seed(client: openai.OpenAI) -> None:
    reply = client.images.generate(prompt="Random", n=4, extra_body={"seed": 5})
    assert reply.data is not None
    for j, item in enumerate(reply.data):
        spec = GenerationSpec(
            n=4,
            seed=5,
            sampling=SamplingParams(label=random_label(image_seed(5, j), len(GREY.classes))),
        )
        assert np.array_equal(pixels_of(item.b64_json), fake_image(GREY, spec, j))
    with pytest.raises(openai.BadRequestError, match="leave it empty"):
        client.images.generate(prompt="random", model="colour")  # without classes


NUMBERS = replace(GREY, classes=tuple("0123456789"))
ANIMALS = replace(COLOUR, classes=("cat", "frog"))


def test_prompt_selects_the_model_that_has_the_class() -> None:
    models = {"numbers": FakeDecoder(NUMBERS, 4), "animals": FakeDecoder(ANIMALS, 4)}
    app_state, app = build(decoders={**models})
    with listening(app, lambda: app_state.ready) as url, openai_client(url) as client:
        for prompt, config, label in (
            ("draw a 7", NUMBERS, 7), ("Seven", NUMBERS, 7), ("the digit 7", NUMBERS, 7),
            ("handwritten digit three", NUMBERS, 3), ("a frog", ANIMALS, 1), ("Cat.", ANIMALS, 0),
        ):  # fmt: skip
            data = client.images.generate(prompt=prompt, extra_body={"seed": 5}).data
            assert data is not None
            expected = fake_image(
                config, GenerationSpec(n=1, seed=5, sampling=SamplingParams(label=label)), 0
            )
            assert np.array_equal(pixels_of(data[0].b64_json, config), expected), prompt
        assert client.images.generate(prompt="1", model="animals").data  # by number
        for prompt, model, message in (
            ("a frog", "numbers", "0, 1, 2, 3"), ("a dog", None, "animals: cat, frog"),
            ("draw a", None, "do not understand"), ("two frogs", None, "animals"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=message) as refused:
                client.images.generate(prompt=prompt, model=model or openai.omit)
            assert refused.value.param == "prompt"


def test_classes_that_differ_in_case() -> None:
    letters = replace(ANIMALS, classes=("A", "a"))
    models = {"low": replace(ANIMALS, classes=("a", "b")), "letters": letters}
    found = [parse_prompt(prompt, models) for prompt in ("A", "a", "Draw A", "B")]
    assert found == [("letters", 0), ("low", 0), ("letters", 0), ("low", 1)]
    with pytest.raises(ApiError):  # ambiguous
        parse_prompt("draw Ab", {"letters": replace(letters, classes=("AB", "ab"))})
    with pytest.raises(ApiError, match="do not understand"):
        parse_prompt("draw a cat", {"cats": replace(letters, classes=("cat!", "cat?"))})


@pytest.mark.parametrize("name", ["St. Bernard", "children's", "v1.0", "cafe\u0301"])
def test_class_names_with_punctuation_and_accents(name: str) -> None:
    classes = ("cat", "St. Bernard", "children's", "v1.0", "caf\u00e9")
    models = {"first": ANIMALS, "mine": replace(ANIMALS, classes=classes)}
    expected = classes.index(name) if name in classes else 4
    for prompt in (name, f"Draw a {name.upper()}!"):
        assert parse_prompt(prompt, models) == ("mine", expected)


def test_a_class_of_punctuation_does_not_match_other_prompts() -> None:
    models = {"letters": replace(ANIMALS, classes=("A", "B", ".", "C.", "C"))}
    named = {"C": 4, "C.": 3, ".": 2, "a letter b": None, "please": None, "the": None}
    for prompt, number in named.items():
        if number is not None:
            assert parse_prompt(prompt, models) == ("letters", number)
            continue
        with pytest.raises(ApiError, match="do not understand sentences"):
            parse_prompt(prompt, models)


@pytest.mark.parametrize("temperature", [0, 0.5])
def test_reply_contains_the_seeds(client: openai.OpenAI, temperature: float) -> None:
    reply = client.images.generate(
        prompt="one", n=3, extra_body={"seed": 40, "temperature": temperature}
    )
    assert reply.data is not None
    spec = GenerationSpec(n=3, seed=40, sampling=SamplingParams(label=1, temperature=temperature))
    for j, item in enumerate(reply.data):
        assert item.model_extra == {"seed": 40 + j, "bits_per_dim": pytest.approx(1.0)}
        assert np.array_equal(pixels_of(item.b64_json), fake_image(GREY, spec, j))
    assert reply.created > 1_600_000_000
    assert (reply.background, reply.output_format, reply.size) == ("opaque", "png", "5x6")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 90)
    assert reply.usage.total_tokens == 90
    assert (reply.model_extra or {})["warnings"] == []


def test_an_image_can_be_drawn_again_alone(client: openai.OpenAI) -> None:
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
    assert np.array_equal(small, fake_image(COLOUR, GenerationSpec(n=1, seed=1), 0))


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("grey", "256x256"), ("grey", "1024x1024"), ("grey", "2048x2048"), ("grey", "7x9"),
        ("colour", "1536x1024"), ("colour", "768x768"), ("colour", "1536x864"),
        ("colour", "2047x8"),
    ],
)  # fmt: skip
def test_any_size_contains_the_image_in_its_middle(
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
    drawn = fake_image(config, GenerationSpec(n=1, seed=1), 0)
    assert np.array_equal(inside[::scale, ::scale].reshape(config.pixels, -1), drawn)
    assert inside.astype(int).sum() == picture.astype(int).sum()  # black around it
    warnings = (reply.model_extra or {})["warnings"]
    exact = (scale * config.width, scale * config.height) == (width, height)
    assert [warning.split(":")[0] for warning in warnings] == ([] if exact else ["size"])
    # The reply can be edited like the image before it was enlarged.
    paint = np.zeros((height, width), bool)
    right, bottom = left + scale * config.width, top + scale * config.height
    paint[bottom - scale : bottom, right - scale : right] = True
    edited = client.images.edit(
        model=model, image=data, mask=masked(Image.open(io.BytesIO(data)), paint), prompt="",
        extra_body={"seed": 9},
    )  # fmt: skip
    assert edited.data is not None
    known = np.arange(config.pixels) < config.pixels - 1
    spec = GenerationSpec(n=1, seed=9, canvas=drawn, known=known)
    expected = fake_image(config, spec, 0)
    assert np.array_equal(pixels_of(edited.data[0].b64_json, config), expected)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_file_formats(client: openai.OpenAI, kind: Any) -> None:
    sizes: list[int] = []
    for quality in (1, 100):
        reply = client.images.generate(
            prompt="", size="50x60", output_format=kind, output_compression=quality,
            extra_body={"seed": 1},
        )  # fmt: skip
        assert reply.data is not None
        sizes.append(len(reply.data[0].b64_json or ""))
    assert (sizes[0] < sizes[1]) == (kind != "png")
    assert reply.data is not None
    picture = Image.open(io.BytesIO(base64.b64decode(reply.data[0].b64_json or "")))
    assert picture.format == kind.upper()
    assert reply.output_format == kind
    warnings = (reply.model_extra or {})["warnings"]
    assert len(warnings) == (kind == "png")


def test_options_of_newer_clients_cause_warnings(client: openai.OpenAI) -> None:
    options = dict.fromkeys(
        ("complexity", "frame_count", "frame_duration_ms", "markup", "input_fidelity"), "any"
    )
    reply = client.images.generate(prompt="", extra_body={**options, "svg": {"model": "x"}})
    warnings = (reply.model_extra or {})["warnings"]
    assert {warning.split(":")[0] for warning in warnings} == {*options, "svg"}


def test_unknown_fields_may_be_null(client: openai.OpenAI) -> None:
    """OpenAI's clients send null for the options that are not set, whatever the server knows."""
    nulls = dict.fromkeys(("complexity", "svg", "frame_count", "markup", "an_option_of_2030"))
    reply = client.images.generate(prompt="", extra_body=nulls)
    assert (reply.model_extra or {})["warnings"] == []


def test_options_without_effect_cause_warnings(client: openai.OpenAI) -> None:
    reply = client.images.generate(
        prompt="", quality="high", style="vivid", moderation="low", user="me", partial_images=2,
        background="opaque", response_format="b64_json", size="auto",
    )  # fmt: skip
    warnings = (reply.model_extra or {})["warnings"]
    named = {warning.split(":")[0] for warning in warnings}
    assert named == {"quality", "style", "moderation", "user", "partial_images"}
    default = client.images.generate(prompt="", quality="auto", moderation="auto")
    assert (default.model_extra or {})["warnings"] == []


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        ("prompt", "a castle", "zero, one, a frog"),
        ("size", "4x5", "5x6"),
        ("size", "6x5", "5x6"),
        ("size", "2500x3000", "2048"),
        ("size", "2049x100", "2048"),
        ("size", "05x06", "5x6"),
        ("response_format", "url", "b64_json"),
        ("background", "transparent", "never transparent"),
        ("n", 0, "greater"),
        ("n", 257, "256"),
        ("temperature", 3, "less"),
        ("seed", -1, "greater"),
        ("output_format", "gif", "png"),
        ("resolution", 5, "no such field"),
    ],
)
def test_invalid_options_are_refused(
    client: openai.OpenAI, param: str, value: object, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(**{"prompt": "", "extra_body": {param: value}})  # type: ignore[call-overload]
    assert refused.value.param == param
    assert message in refused.value.message


def test_unknown_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="the models are: grey, colour"):
        client.images.generate(model="dall-e-3", prompt="")


def test_null_counts_as_left_out(http: httpx.Client) -> None:
    body = {"prompt": "", "n": None, "size": None, "seed": None, "quality": None, "stream": None}
    assert http.post("/v1/images/generations", json=body).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_thread_pool_is_chosen_by_the_enlarged_size(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large images must not delay small replies."""
    asked, encode_pool_for = list[int](), AppState.encode_pool_for

    def record(server: AppState, pixels: int) -> FairThreadPool:
        asked.append(pixels)
        return encode_pool_for(server, pixels)

    monkeypatch.setattr(AppState, "encode_pool_for", record)
    _, app = build(decoders={"grey": FakeDecoder(GREY, 2)})
    with talking_to(app) as client:
        body = {"prompt": "", "size": "50x60", "stream": stream}
        assert client.post("/v1/images/generations", json=body).status_code == 200
    assert asked == [50 * 60]
