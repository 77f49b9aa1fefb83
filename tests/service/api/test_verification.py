"""Tests of ``POST /v1/verify``, and of the recipes in every PNG that the server writes."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image as Picture

from scanline.service.recipes.recipe import Recipe, embed_recipe, read_recipe
from tests.service.api.fixtures import LiveServer, serve
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, check_error, encode, random_picture
from tests.sse_client import parse_sse

CONFIGS = {"grey": GREY, "colour": COLOUR}


def portable_decoders() -> dict[str, FakeDecoder]:
    """Return decoders whose bytes are said to be the same on every machine."""
    decoders = {name: FakeDecoder(config, 8) for name, config in CONFIGS.items()}
    for decoder in decoders.values():
        decoder.arithmetic = 1
    return decoders


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serve({"max_images": 20}, **portable_decoders()) as server:
        yield server


def verify(api: LiveServer, picture: bytes, **others: Any) -> dict[str, Any]:
    """Verify a picture and return the reply. Values of type bytes are sent as files."""
    files = {"image": picture} | {n: v for n, v in others.items() if isinstance(v, bytes)}
    data = {name: value for name, value in others.items() if name not in files}
    reply = api.client.post("/v1/verify", files=files, data=data)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def draw(api: LiveServer, media: str = "image/png", **body: Any) -> bytes:
    reply = api.client.post("/v1/samples", json=body, headers={"Accept": media})
    assert reply.status_code == 200, reply.text
    return reply.content


def edit(file: bytes, *places: tuple[int, int]) -> bytes:
    """Invert pixels of a picture, and keep its recipe."""
    recipe = read_recipe(file)
    assert recipe is not None
    with Picture.open(io.BytesIO(file)) as picture:
        values = np.array(picture)
    for x, y in places:
        values[y, x] ^= 255
    return embed_recipe(encode(Picture.fromarray(values)), recipe, GREY)


def pngs_of_every_form(api: LiveServer, model: str) -> Iterator[tuple[str, bytes]]:
    """Yield a name and a PNG for each way in which the server writes one."""
    fields: dict[str, Any] = {"model": model, "seed": 5, "temperature": 0.5}
    yield "one", draw(api, **fields)
    yield "grid", draw(api, n=5, **fields)
    with zipfile.ZipFile(io.BytesIO(draw(api, "application/zip", n=2, **fields))) as archive:
        for name in archive.namelist():
            yield f"zip, {name}", archive.read(name)
    reply = api.samples(n=2, label="random" if model == "grey" else None, **fields).json()
    for image in reply["images"]:
        yield f"json, {image['index']}", base64.b64decode(image["png"])
    kept = api.client.get(f"/v1/generations/{reply['id']}", headers={"Accept": "image/png"})
    yield "generation", kept.content
    for event in parse_sse(draw(api, "text/event-stream", stream=True, n=2, **fields)):
        if event.name == "image":
            yield f"stream, {event.data['index']}", base64.b64decode(event.data["png"])
    yield "address", api.client.get(f"/v1/samples/{model}/5.png?temperature=0.5").content
    yield "preview", api.client.get(f"/card.png?model={model}&seed=5&n=3").content
    config = CONFIGS[model]
    for size in ("auto", f"{3 * config.width}x{3 * config.height}", "512x512"):
        asked = {"model": model, "prompt": "", "seed": 5, "size": size}
        drawn = api.client.post("/v1/images/generations", json=asked).json()["data"][0]
        yield f"openai, {size}", base64.b64decode(drawn["b64_json"])
    streamed = api.client.post("/v1/images/generations", json=asked | {"stream": True})
    yield "openai, stream", base64.b64decode(parse_sse(streamed.content)[-1].data["b64_json"])


@pytest.mark.parametrize("model", CONFIGS)
def test_every_png_carries_a_recipe_that_draws_it_again(server: LiveServer, model: str) -> None:
    names = []
    for name, png in pngs_of_every_form(server, model):
        verdict = verify(server, png)
        assert (verdict["verdict"], verdict["changed_pixels"]) == ("same", 0), (name, verdict)
        assert verdict["changes"] is None
        assert verdict["recipe"]["model"] == model
        names.append(name)
    assert len(names) == 15


def test_without_metadata_no_png_carries_a_recipe() -> None:
    with serve({"png_metadata": False}, **portable_decoders()) as api:
        for name, png in pngs_of_every_form(api, "grey"):
            with Picture.open(io.BytesIO(png)) as picture:
                assert not {"scanline", "parameters"} & picture.info.keys(), name
        assert verify(api, png)["verdict"] == "no_recipe"


def test_recipe_names_nothing_of_the_client(server: LiveServer) -> None:
    headers = {"Accept": "image/png", "X-Request-ID": "request-of-mine", "Idempotency-Key": "k-1"}
    replies = [
        server.client.post("/v1/samples", json={"seed": 2}, headers=headers | {"User-Agent": name})
        for name in ("one", "two")
    ]
    assert replies[0].content == replies[1].content == draw(server, seed=2)


def test_metadata_changes_the_etag(server: LiveServer) -> None:
    tags = {server.client.get("/v1/samples/grey/3.png").headers["etag"]}
    with serve({"png_metadata": False}, **portable_decoders()) as api:
        tags.add(api.client.get("/v1/samples/grey/3.png").headers["etag"])
    decoders = portable_decoders()
    decoders["grey"].arithmetic = 2
    with serve(None, **decoders) as api:
        tags.add(api.client.get("/v1/samples/grey/3.png").headers["etag"])
    assert len(tags) == 3


def test_edited_pixels_are_counted_and_shown(server: LiveServer) -> None:
    drawn = draw(server, seed=5)
    verdict = verify(server, edit(drawn, (1, 0), (3, 2), (4, 5)))
    assert verdict["verdict"] == "edited"
    assert verdict["changed_pixels"] == 3
    assert "3 of 30 pixels were changed, the first in row 1, column 2" in verdict["message"]
    with Picture.open(io.BytesIO(base64.b64decode(verdict["changes"]))) as picture:
        shown = np.asarray(picture)
    scale = shown.shape[0] // GREY.height
    red = (shown[::scale, ::scale] == (255, 0, 80)).all(-1)
    assert [(x, y) for y, x in np.argwhere(red)] == [(1, 0), (3, 2), (4, 5)]
    one = verify(server, edit(draw(server, n=4, seed=5), (8, 9)))
    assert (one["verdict"], one["changed_pixels"]) == ("edited", 1)
    assert "1 of 168 pixel was changed" in one["message"]


def test_any_part_of_an_enlarged_pixel_counts(server: LiveServer) -> None:
    body = {"model": "grey", "prompt": "", "seed": 5, "size": "512x512"}
    reply = server.client.post("/v1/images/generations", json=body).json()
    png = base64.b64decode(reply["data"][0]["b64_json"])
    left, top, scale = (512 - 85 * 5) // 2, (512 - 85 * 6) // 2, 85
    places = [(left + 2 * scale, top), (left + 2 * scale + 84, top + 84), (left + 3 * scale, top)]
    verdict = verify(server, edit(png, *places))
    assert (verdict["verdict"], verdict["changed_pixels"]) == ("edited", 2)
    margin = verify(server, edit(png, (0, 0)))
    assert (margin["verdict"], margin["changed_pixels"]) == ("edited", 0)
    assert "margin" in margin["message"]


@pytest.mark.parametrize("size", [(10, 12), (4, 6), (5, 5)])
def test_resized_picture(server: LiveServer, size: tuple[int, int]) -> None:
    drawn = draw(server, seed=5)
    recipe = read_recipe(drawn)
    assert recipe is not None
    with Picture.open(io.BytesIO(drawn)) as picture:
        resized = embed_recipe(encode(picture.resize(size, 0)), recipe, GREY)
    # A picture that is larger looks like one with margins, which are not black here.
    expected = "edited" if size == (10, 12) else "resized"
    assert verify(server, resized)["verdict"] == expected


def changed_recipe(drawn: bytes, **fields: Any) -> bytes:
    """Return a drawn PNG with other facts in its recipe."""
    recipe = read_recipe(drawn)
    assert recipe is not None
    with Picture.open(io.BytesIO(drawn)) as picture:
        return embed_recipe(encode(picture), Recipe(**recipe.model_dump() | fields), GREY)


def test_other_weights_or_model(server: LiveServer) -> None:
    drawn = draw(server, seed=5)
    other = verify(server, changed_recipe(drawn, weights="0" * 64))
    assert other["verdict"] == "other_weights"
    assert "0000000000" in other["message"]
    assert other["changed_pixels"] is None
    absent = verify(server, changed_recipe(drawn, weights="0" * 64, model="paintings"))
    assert "'paintings', which is not available" in absent["message"]
    # The weights decide, not the name.
    assert verify(server, changed_recipe(drawn, model="paintings"))["verdict"] == "same"


@pytest.mark.parametrize("fields", [{"arithmetic": 2}, {"arithmetic": None}, {"precision": "int8"}])
def test_other_arithmetic_is_named_only_if_pixels_differ(
    server: LiveServer, fields: dict[str, Any]
) -> None:
    drawn = changed_recipe(draw(server, seed=5), **fields)
    assert verify(server, drawn)["verdict"] == "same"
    verdict = verify(server, edit(drawn, (1, 1)))
    assert (verdict["verdict"], verdict["changed_pixels"]) == ("other_arithmetic", 1)
    assert "perhaps" in verdict["message"]


def test_completion_of_rows_needs_no_source(server: LiveServer) -> None:
    given = encode(random_picture(GREY, 3))
    png = server.complete(given, accept="image/png", known_rows=2, n=1, seed=4).content
    assert verify(server, png)["verdict"] == "same"
    assert verify(server, edit(png, (2, 4)))["changed_pixels"] == 1
    missing = verify(server, edit(png, (2, 1)))  # a known pixel
    assert (missing["verdict"], missing["changed_pixels"]) == ("source_missing", None)
    found = verify(server, edit(png, (2, 1)), source=given, known_rows="2")
    assert (found["verdict"], found["changed_pixels"]) == ("edited", 1)


def test_completion_of_a_mask_needs_its_source(server: LiveServer) -> None:
    given = random_picture(GREY, 3)
    alpha = Picture.new("L", given.size, 255)
    alpha.putpixel((2, 3), 0)
    masked = encode(Picture.merge("LA", (given, alpha)))
    png = server.complete(masked, accept="image/png", n=2, seed=4).content
    assert verify(server, png)["verdict"] == "source_missing"
    assert verify(server, png, source=masked)["verdict"] == "same"
    assert verify(server, png, source=encode(given), mask=masked)["verdict"] == "same"
    alpha.putpixel((2, 4), 0)
    other = encode(Picture.merge("LA", (given, alpha)))
    assert verify(server, png, source=other)["verdict"] == "other_source"


def test_grid_of_completed_rows_needs_no_source(server: LiveServer) -> None:
    given = encode(random_picture(GREY, 3))
    png = server.complete(given, accept="image/png", known_rows=2, n=3, seed=4).content
    assert verify(server, png)["verdict"] == "same"
    assert verify(server, png, source=given, known_rows="3")["verdict"] == "other_source"


def test_fields_without_an_effect_are_refused(server: LiveServer) -> None:
    given = encode(random_picture(GREY, 3))
    drawn = draw(server, seed=5)
    for field, value in (("known_rows", "2"), ("fit", "cover")):
        files = {"image": ("a.png", drawn)}
        reply = server.client.post("/v1/verify", files=files, data={field: value})
        assert "send source too" in check_error(reply, 400, "unsupported", field)
    reply = server.client.post("/v1/verify", files={"image": drawn, "mask": given})
    assert "send source too" in check_error(reply, 400, "unsupported", "mask")
    reply = server.client.post("/v1/verify", files={"image": drawn, "source": given})
    assert "not a completion" in check_error(reply, 400, "unsupported", "source")


def test_unfinished_images_carry_no_recipe() -> None:
    decoder = FakeDecoder(GREY, 1)
    with serve(grey=decoder) as api:

        def fail(slots: list[int]) -> None:
            raise RuntimeError("broken")

        decoder.before_step = fail
        events = parse_sse(api.samples(stream=True).content)
        (image,) = (event.data for event in events if event.name == "image")
        assert read_recipe(base64.b64decode(image["png"])) is None
        decoder.before_step = lambda slots: None


def test_previews_carry_no_recipe(server: LiveServer) -> None:
    body = {"model": "grey", "prompt": "", "seed": 5, "stream": True, "partial_images": 2}
    events = parse_sse(server.client.post("/v1/images/generations", json=body).content)
    files = [base64.b64decode(event.data["b64_json"]) for event in events]
    assert [read_recipe(file) is None for file in files] == [True, True, False]


def test_jpeg_has_no_recipe(server: LiveServer) -> None:
    assert verify(server, encode(random_picture(), "JPEG"))["verdict"] == "no_recipe"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"label": "unicorn"}, "unknown_class"),
        ({"n": 21, "scale": 1}, "too_many"),
        ({"particles": 64}, "too_many"),
        ({"label": None, "guidance": 2.0}, "no_label"),
    ],
)
def test_recipe_that_cannot_be_drawn(server: LiveServer, fields: dict[str, Any], code: str) -> None:
    n = fields.get("n", 1)
    columns, rows = (5, 5) if n == 21 else (1, 1)
    size = (columns * 7 - 2, rows * 8 - 2)
    recipe = read_recipe(draw(server, seed=1))
    assert recipe is not None
    png = embed_recipe(encode(Picture.new("L", size)), Recipe(**recipe.model_dump() | fields), GREY)
    reply = server.client.post("/v1/verify", files={"image": png})
    assert "cannot draw the recipe" in check_error(reply, 400, code, "image")


def test_invalid_uploads(server: LiveServer) -> None:
    post = server.client.post
    check_error(post("/v1/verify", files={"image": b"no picture"}), 400, "invalid_image", "image")
    check_error(post("/v1/verify", data={"fit": "exact"}), 400, param="image")
    drawn = draw(server, seed=5)
    broken = drawn.replace(b'"seed":5', b'"seed":6')
    check_error(post("/v1/verify", files={"image": broken}), 400, "invalid_recipe", "image")
    png = server.complete(encode(random_picture()), accept="image/png", known_rows=2).content
    files = {"image": png, "source": b"no picture"}
    check_error(post("/v1/verify", files=files), 400, "invalid_image", "source")
    check_error(post("/v1/verify", files={"image": drawn}, data={"x": "1"}), 400, param="x")


def test_largest_enlarged_picture_is_accepted() -> None:
    side = 23
    large = replace(GREY, height=side, width=side)
    decoder = FakeDecoder(large, 1)
    decoder.arithmetic = 1
    with serve(large=decoder) as api:
        size = 2048 // side * side
        body = {"prompt": "", "size": f"{size}x{size}"}
        reply: httpx.Response = api.client.post("/v1/images/generations", json=body)
        png = base64.b64decode(reply.json()["data"][0]["b64_json"])
        assert size * size > 4_000_000
        assert verify(api, png)["verdict"] == "same"
