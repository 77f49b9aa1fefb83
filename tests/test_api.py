"""The HTTP API over a real socket: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, get_args

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture

from scanline.model.checkpoint import Checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import Inputs
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.noise import image_noise, image_seed
from scanline.service.api.cursors import END, Cursor, read_cursors, write_cursors
from scanline.service.api.events import stream_events
from scanline.service.api.requests import Granularity
from scanline.service.app import create_app
from scanline.service.generation import FinishReason, Generation, Place, Spec
from scanline.service.server import Scanline
from scanline.service.uploads import MAX_PIXELS
from scanline.service.workshop import Workshop
from tests.service_fixtures import (
    COLOUR,
    GREY,
    Event,
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
    rebuild,
    settings,
    tiny_model,
    until,
)

CONFIGS = {"grey": GREY, "colour": COLOUR}


@dataclass(frozen=True)
class Here:
    """A server in this process, and a client of it."""

    scanline: Scanline
    client: httpx.Client
    url: str

    def samples(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/samples", json=body)

    def complete(
        self, picture: bytes, mask: bytes | None = None, accept: str = "*/*", **fields: Any
    ) -> httpx.Response:
        files = {"image": ("picture.png", picture)}
        if mask is not None:
            files["mask"] = ("mask.png", mask)
        data = {name: str(value) for name, value in fields.items()}
        return self.client.post(
            "/v1/completions", files=files, data=data, headers={"Accept": accept}
        )


def serve(fields: dict[str, Any] | None = None, **decoders: Any) -> Iterator[Here]:
    scanline, app = build(fields, decoders or None)
    with (
        listening(app, lambda: scanline.ready) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield Here(scanline, client, url)


@pytest.fixture(scope="module")
def shared() -> Iterator[Here]:
    yield from serve({"max_images": 20, "max_waiting": 1000, "max_upload": 1_000_000})


@pytest.fixture
def here(shared: Here) -> Iterator[Here]:
    """Give the shared server, and check afterwards that it serves and holds nothing."""
    yield shared
    until(lambda: idle(shared.scanline), "an idle server")
    assert shared.samples(n=1, seed=0).status_code == 200


class Held(FakeDecoder):
    """Draws one pixel of each image for every permit, all of them once it is open."""

    def __init__(self, config: ModelConfig = GREY, max_slots: int = 4) -> None:
        super().__init__(config, max_slots)
        self.permits, self.opened = threading.Semaphore(0), threading.Event()

    def step(self, slots: Any, n: int) -> None:
        if self.opened.is_set():
            super().step(slots, n)
        elif self.permits.acquire(timeout=0.001):
            super().step(slots, 1)

    def let(self, pixels: int) -> None:
        for _ in range(pixels):
            self.permits.release()


def held(**fields: Any) -> Iterator[tuple[Here, Held]]:
    decoder = Held()
    server = serve(fields, fake=decoder)
    here = next(server)
    try:
        yield here, decoder
    finally:
        decoder.opened.set()
        until(lambda: idle(here.scanline), "an idle server")
        next(server, None)


@pytest.fixture
def holding() -> Iterator[tuple[Here, Held]]:
    yield from held()


def png(image: dict[str, Any], config: ModelConfig) -> NDArray[np.uint8]:
    return decode_png(base64.b64decode(image["png"], validate=True), config)


def values(image: dict[str, Any], config: ModelConfig) -> NDArray[np.uint8]:
    return np.array(image["values"], np.uint8).reshape(config.pixels, config.channels)


def drawn_directly(config: ModelConfig, spec: Spec, index: int) -> NDArray[np.uint8]:
    """Draw one image with a decoder and no engine."""
    decoder = ReferenceDecoder(tiny_model(config), 1)
    inputs = Inputs.blank(config, 1)
    seed = image_seed(spec.seed, index)
    inputs.noise[0] = image_noise(seed, config.pixels, config.draws)
    inputs.temperature[0], inputs.label[0] = spec.temperature, spec.label
    decoder.begin([0], inputs)
    decoder.step([0], config.pixels)
    pixels: NDArray[np.uint8] = decoder.canvas[0].copy()
    return pixels


# --- samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", CONFIGS)
def test_samples_as_json(here: Here, model: str) -> None:
    config = CONFIGS[model]
    reply = here.samples(model=model, n=3, seed=12)
    assert reply.status_code == 200
    body = reply.json()
    assert body["object"] == "generation"
    assert body["status"] == "finished"
    assert body["model"] == model
    assert (body["width"], body["height"]) == (config.width, config.height)
    assert body["channels"] == config.channels
    assert body["error"] is None
    assert reply.headers["x-generation-id"] == body["id"]
    assert reply.headers["x-seed"] == "12"
    assert body["usage"]["pixels"] == 3 * config.pixels
    assert [i["index"] for i in body["images"]] == [0, 1, 2]
    assert [i["seed"] for i in body["images"]] == [12, 13, 14]
    for image in body["images"]:
        assert image["finish_reason"] == "length"
        assert image["position"] == config.pixels
        assert image["bits_per_dim"] > 0
        expected = drawn_directly(config, Spec(n=3, seed=12), image["index"])
        np.testing.assert_array_equal(png(image, config), expected)
    again = here.client.get(f"/v1/generations/{body['id']}").json()
    assert again == body


def test_samples_as_values_say_the_same_as_png(here: Here) -> None:
    for model, config in CONFIGS.items():
        pngs = here.samples(model=model, n=2, seed=3).json()["images"]
        lists = here.samples(model=model, n=2, seed=3, output="values").json()["images"]
        for one, other in zip(pngs, lists, strict=True):
            assert "values" not in one
            assert "png" not in other
            np.testing.assert_array_equal(png(one, config), values(other, config))


def test_an_image_of_a_batch_can_be_made_again_alone(here: Here) -> None:
    batch = here.samples(n=5, seed=2**64 - 2, label=1).json()["images"]
    assert [i["seed"] for i in batch] == [2**64 - 2, 2**64 - 1, 0, 1, 2]
    for image in batch:
        alone = here.samples(n=1, seed=image["seed"], label="one").json()["images"][0]
        assert alone["png"] == image["png"]
        assert alone["bits_per_dim"] == image["bits_per_dim"]


def test_without_a_seed_one_is_chosen_and_named(here: Here) -> None:
    first, second = here.samples().json(), here.samples().json()
    seeds = [body["images"][0]["seed"] for body in (first, second)]
    assert seeds[0] != seeds[1]
    again = here.samples(seed=seeds[0]).json()
    assert again["images"][0]["png"] == first["images"][0]["png"]


def test_a_label_by_name_and_by_number_is_the_same(here: Here) -> None:
    def drawn(label: object) -> str:
        reply = here.samples(seed=5, label=label)
        assert reply.status_code == 200, reply.text
        picture: str = reply.json()["images"][0]["png"]
        return picture

    frogs = {drawn(label) for label in ("a frog", "A Frog ", "2", 2)}
    assert len(frogs) == 1
    assert len({*frogs, drawn("one"), drawn(0), drawn(None)}) == 4


def test_temperature_0_takes_the_likeliest_whatever_the_seed(here: Here) -> None:
    cold = here.samples(n=3, seed=1, temperature=0).json()["images"]
    assert len({i["png"] for i in cold}) == 1
    assert here.samples(seed=99, temperature=0.0).json()["images"][0]["png"] == cold[0]["png"]
    assert here.samples(seed=1, temperature=2).json()["images"][0]["png"] != cold[0]["png"]


def test_one_png_a_grid_and_an_archive(here: Here) -> None:
    for model, config in CONFIGS.items():
        body = {"model": model, "n": 5, "seed": 8}
        images = [png(i, config) for i in here.samples(**body).json()["images"]]
        grid = here.client.post("/v1/samples", json=body, headers={"Accept": "image/png"})
        assert grid.headers["content-type"] == "image/png"
        assert grid.headers["x-seed"] == "8"
        laid = np.asarray(Picture.open(io.BytesIO(grid.content)))
        H, W = config.height + 2, config.width + 2
        assert laid.shape[:2] == (2 * H - 2, 3 * W - 2)
        for j, image in enumerate(images):
            y, x = j // 3 * H, j % 3 * W
            cell = laid[y : y + config.height, x : x + config.width]
            np.testing.assert_array_equal(cell.reshape(image.shape), image)
        one = here.client.post(
            "/v1/samples", json=body | {"n": 1}, headers={"Accept": "image/*"}
        )  # fmt: skip
        np.testing.assert_array_equal(decode_png(one.content, config), images[0])
        packed = here.client.post("/v1/samples", json=body, headers={"Accept": "application/zip"})
        assert packed.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
            assert archive.testzip() is None
            names = archive.namelist()
            assert names == [f"{j:04d}-seed-{8 + j}.png" for j in range(5)]
            for name, image in zip(names, images, strict=True):
                np.testing.assert_array_equal(decode_png(archive.read(name), config), image)
        again = here.client.post("/v1/samples", json=body, headers={"Accept": "application/zip"})
        assert again.content == packed.content
        bulk = here.client.post("/v1/samples", json=body, headers={"Accept": "application/x-npy"})
        assert (bulk.headers["content-type"], bulk.headers["x-seed"]) == ("application/x-npy", "8")
        array = np.load(io.BytesIO(bulk.content), allow_pickle=False)
        assert array.dtype == np.uint8
        assert array.shape == (5, config.height, config.width, config.channels)
        np.testing.assert_array_equal(array.reshape(5, *images[0].shape), images)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("", "application/json"),
        ("application/*", "application/json"),
        ("text/html, image/png;q=0.9, */*;q=0.1", "image/png"),
        ("IMAGE/PNG", "image/png"),
        ("text/event-stream", "text/event-stream; charset=utf-8"),
    ],
)
def test_accept_chooses_the_form(here: Here, accept: str, kind: str) -> None:
    reply = here.client.post("/v1/samples", json={"seed": 1}, headers={"Accept": accept})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == kind


def test_fifty_requests_at_once_give_what_one_gives_alone(here: Here) -> None:
    alone = here.samples(n=2, seed=1000).json()["images"]

    def ask(j: int) -> Any:
        return here.samples(n=1 + j % 3, seed=1000 + j).json()["images"]

    with ThreadPoolExecutor(25) as pool:
        crowd = list(pool.map(ask, range(50)))
    assert crowd[0][0]["png"] == alone[0]["png"]
    assert crowd[1][0]["png"] == alone[1]["png"]
    by_seed: dict[int, set[str]] = {}
    for images in crowd:
        for image in images:
            by_seed.setdefault(image["seed"], set()).add(image["png"])
    assert all(len(pictures) == 1 for pictures in by_seed.values())


# --- completions --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("how", ["rows", "mask", "transparent"])
def test_a_completion_keeps_every_known_pixel(here: Here, model: str, how: str) -> None:
    config = CONFIGS[model]
    picture = random_picture(config, 4)
    original = np.asarray(picture).reshape(config.pixels, config.channels)
    known = np.arange(config.pixels) < 2 * config.width
    if how != "rows":  # in the middle too
        known = known ^ (np.arange(config.pixels) % 4 == 1)
    alpha = Picture.fromarray((known * 255).astype(np.uint8).reshape(config.height, config.width))
    body: dict[str, Any] = {"model": model, "n": 4, "seed": 6}
    if how == "rows":
        reply = here.complete(encode(picture), known_rows=2, **body)
    else:
        masked = picture.convert("RGBA")
        masked.putalpha(alpha)
        if how == "mask":
            reply = here.complete(encode(picture), mask=encode(masked), **body)
        else:
            reply = here.complete(encode(masked), **body)
    assert reply.status_code == 200, reply.text
    images = [png(i, config) for i in reply.json()["images"]]
    for image in images:
        np.testing.assert_array_equal(image[known], original[known])
    assert len({image[~known].tobytes() for image in images}) > 1


@pytest.mark.parametrize("model", CONFIGS)
def test_completions_come_as_an_array_too(here: Here, model: str) -> None:
    config = CONFIGS[model]
    body: dict[str, Any] = {"model": model, "n": 3, "seed": 6, "known_rows": 2}
    picture = encode(random_picture(config, 4))
    images = here.complete(picture, **body).json()["images"]
    bulk = here.complete(picture, accept="application/x-npy", **body)
    assert (bulk.headers["content-type"], bulk.headers["x-seed"]) == ("application/x-npy", "6")
    array = np.load(io.BytesIO(bulk.content), allow_pickle=False)
    assert (array.dtype, array.shape) == (
        np.uint8,
        (3, config.height, config.width, config.channels),
    )
    np.testing.assert_array_equal(
        array.reshape(3, config.pixels, config.channels), [png(image, config) for image in images]
    )


def test_known_rows_0_is_a_sample(here: Here) -> None:
    completed = here.complete(encode(random_picture()), known_rows=0, seed=3, label="one").json()
    sampled = here.samples(seed=3, label=1).json()
    assert completed["images"][0]["png"] == sampled["images"][0]["png"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("model", CONFIGS)
def test_each_format_is_read_whatever_the_colours(here: Here, kind: str, model: str) -> None:
    config = CONFIGS[model]
    colour = Picture.new("RGB", (config.width, config.height), (90, 90, 90))
    reply = here.complete(encode(colour, kind), model=model, known_rows=2, output="values", seed=1)
    assert reply.status_code == 200, reply.text
    top = values(reply.json()["images"][0], config)[: 2 * config.width]
    assert np.abs(top.astype(int) - 90).max() <= 3


def test_a_picture_of_another_size_is_fitted_or_refused(here: Here) -> None:
    large = encode(Picture.new("RGB", (50, 60), (200, 200, 200)))
    message = check_error(here.complete(large, known_rows=2), 400, "invalid_image", "image")
    assert "50 × 60" in message
    assert "5 × 6" in message
    assert "'cover'" in message
    for fit in ("cover", "contain"):
        reply = here.complete(large, known_rows=2, fit=fit, output="values")
        top = values(reply.json()["images"][0], GREY)[:10]
        assert (top == 200).all()
    # Wide, and contained: the border above and below is transparent, so it is what is drawn.
    wide = encode(Picture.new("RGB", (50, 10), (200, 200, 200)))
    reply = here.complete(wide, fit="contain", output="values", n=3, seed=1)
    images = [values(i, GREY).reshape(6, 5) for i in reply.json()["images"]]
    assert any((image[2:4] == 200).all(1).any() for image in images)
    assert len({image.tobytes() for image in images}) == 3


# --- streams ------------------------------------------------------------------------------------


def check_stream(events: list[Event], config: ModelConfig) -> list[Event]:
    """Check a whole stream's order and ids, and that its pixels are its images; give those."""
    names = [event.name for event in events]
    assert names.count("started") == 1
    assert names[0] == "started"
    assert names[-1] == "completed"
    assert names.count("completed") == 1
    ids = [e.id for e in events if e.id is not None]
    assert len(set(ids)) == len(ids)
    assert [e.name for e in events if e.id == END] == ["completed"]
    assert all((e.id is None) == (e.name == "started") for e in events)
    images = [event for event in events if event.name == "image"]
    drawn = rebuild(events, config)
    assert sorted(drawn) == sorted(image.data["index"] for image in images)
    for image in images:
        np.testing.assert_array_equal(drawn[image.data["index"]], png(image.data, config))
    return images


@pytest.mark.parametrize("granularity", ["auto", "row", "pixel"])
@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("n", [1, 3])
def test_a_streams_pixels_are_the_images(here: Here, granularity: str, model: str, n: int) -> None:
    config = CONFIGS[model]
    body = {"model": model, "n": n, "seed": 4, "granularity": granularity}
    reply = here.samples(**body, stream=True)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    events = parse_sse(reply.content)
    images = check_stream(events, config)
    started = events[0].data
    assert started["id"] == reply.headers["x-generation-id"]
    assert started["model"] == model
    assert (started["width"], started["height"]) == (config.width, config.height)
    assert started["channels"] == config.channels
    assert started["images"] == [{"index": j, "seed": 4 + j} for j in range(n)]
    assert started["queue_position"] == 0
    sizes = {
        len(update["values"]) // config.channels
        for event in events if event.name == "pixels" for update in event.data["updates"]
    }  # fmt: skip
    if granularity != "auto":
        assert sizes == {1 if granularity == "pixel" else config.width}
    plain = here.samples(model=model, n=n, seed=4).json()
    for image in images:
        same = plain["images"][image.data["index"]]
        assert image.data["png"] == same["png"]
        assert image.data["bits_per_dim"] == same["bits_per_dim"]
    assert events[-1].data["usage"]["pixels"] == n * config.pixels
    asked = here.client.get(f"/v1/generations/{started['id']}").json()
    assert asked["usage"] == events[-1].data["usage"]


def test_a_completions_stream_has_the_known_pixels_too(here: Here) -> None:
    picture = random_picture(COLOUR, 2)
    reply = here.complete(
        encode(picture), model="colour", known_rows=2, n=3, stream="true", granularity="row"
    )
    events = parse_sse(reply.content)
    check_stream(events, COLOUR)
    known = np.asarray(picture).reshape(-1, 3)[: 2 * COLOUR.width]
    for image in rebuild(events, COLOUR).values():
        np.testing.assert_array_equal(image[: 2 * COLOUR.width], known)
    assert events[-1].data["usage"]["pixels"] == 3 * 2 * COLOUR.width


def read_some(here: Here, url: str, events: int, method: str = "GET", **request: Any) -> bytes:
    """Read a stream up to so many events, and drop the connection."""
    raw = b""
    with here.client.stream(method, url, **request) as reply:
        assert reply.status_code == 200
        for part in reply.iter_raw():
            raw += part
            if raw.count(b"\n\n") + raw.count(b"\r\n\r\n") >= events:
                break
    return raw


def test_a_dropped_stream_is_resumed_and_rebuilds_exactly(holding: tuple[Here, Held]) -> None:
    here, decoder = holding
    decoder.let(7)
    body = {"n": 2, "seed": 5, "stream": True}
    first = parse_sse(read_some(here, "/v1/samples", 2, "POST", json=body), complete=False)
    assert [e.name for e in first[:2]] == ["started", "pixels"]
    identifier = first[0].data["id"]
    generation = here.scanline.models["fake"].engine.queue.find(identifier)
    assert generation is not None
    until(lambda: generation.readers == 0, "the server's noticing")
    assert not generation.finished
    decoder.let(4)
    url, headers = f"/v1/generations/{identifier}/events", {"Last-Event-ID": first[-1].id or ""}
    second = parse_sse(read_some(here, url, 1, headers=headers), complete=False)
    assert second[0].name == "pixels"
    decoder.opened.set()
    headers = {"Last-Event-ID": second[-1].id or ""}
    third = parse_sse(here.client.get(url, headers=headers).content)
    # What one reader has seen is never sent to it again: the three together are one whole stream.
    images = check_stream(first + second + third, GREY)
    for image in images:
        expected = fake_image(GREY, generation.spec, image.data["index"])
        np.testing.assert_array_equal(png(image.data, GREY), expected)
    finished = {"Last-Event-ID": third[-2].id or ""}
    assert [e.name for e in parse_sse(here.client.get(url, headers=finished).content)] == [
        "completed"
    ]
    # And when all is over, from the start, as often as one likes.
    for granularity in ("auto", "row", "pixel"):
        over = here.client.get(url, params={"granularity": granularity})
        assert len(check_stream(parse_sse(over.content), GREY)) == 2
    for wrong in (
        "x",
        "-1",
        "1",
        "3*1",
        "0*1,1,1",
        "9" * 5000,
        "1," * 5000,
    ):
        reply = here.client.get(url, headers={"Last-Event-ID": wrong})
        check_error(reply, 400, "invalid_value", "last-event-id")
    # An EventSource asks again after the end, with the last id that it saw, until there is a 204.
    ended = here.client.get(url, headers={"Last-Event-ID": third[-1].id or ""})
    assert (ended.status_code, ended.content) == (204, b"")


def test_a_stream_misses_nothing_that_happens_while_it_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.api.events.KEEP_ALIVE_SECONDS", 0.2)
    generation = Generation("fake", GREY, Spec(n=2, seed=0))
    published = np.zeros(1, np.int32)
    row = np.arange(GREY.pixels, dtype=np.uint8)[:, None]
    generation.images[0].run(0, Place(row, published))

    async def read() -> list[Event]:
        gone = asyncio.create_task(asyncio.sleep(60))
        stream = stream_events(generation, gone)
        raw = await anext(stream)
        published[0] = 7
        raw += await anext(stream)
        published[0] = 9  # while the last event is on its way; then no more news
        generation.wake()
        raw += await anext(stream)
        gone.cancel()
        return parse_sse(raw)

    events = asyncio.run(read())
    assert [event.name for event in events] == ["started", "pixels", "pixels"]
    assert rebuild(events, GREY)[0].ravel().tolist() == list(range(9))


def test_rows_come_whole_but_for_the_last_of_a_cancelled_image_and_each_image_once() -> None:
    generation = Generation("fake", GREY, Spec(n=2, seed=0))
    first, second = generation.images
    published = np.zeros((2, 1), np.int32)
    for slot, image in enumerate(generation.images):
        image.run(slot, Place(np.arange(GREY.pixels, dtype=np.uint8)[:, None], published[slot]))

    async def read() -> list[Event]:
        gone = asyncio.create_task(asyncio.sleep(60))
        stream = stream_events(generation, gone, granularity="row")
        raw = await anext(stream)
        for position in (7, 12, 30):  # rows are five pixels wide
            published[:] = position
            if position == 30:
                first.finish(FinishReason.LENGTH, float(GREY.pixels))
                published[1] = 13
            generation.wake()
            raw += await anext(stream)
        raw += await anext(stream)
        second.finish(FinishReason.CANCELLED, None)
        generation.finish(time.monotonic())
        raw += b"".join([part async for part in stream])
        gone.cancel()
        return parse_sse(raw)

    events = asyncio.run(read())
    assert [e.name for e in events] == [
        "started", "pixels", "pixels", "pixels", "image", "pixels", "image", "completed",
    ]  # fmt: skip
    sizes = [
        [(u["index"], u["position"], len(u["values"])) for u in e.data["updates"]]
        for e in events if e.name == "pixels"
    ]  # fmt: skip
    assert sizes == [
        [(0, 0, 5), (1, 0, 5)],
        [(0, 5, 5), (1, 5, 5)],
        [(0, 10, 5), (0, 15, 5), (0, 20, 5), (0, 25, 5)],
        [(1, 10, 3)],
    ]
    assert [e.data["index"] for e in events if e.name == "image"] == [0, 1]


def test_an_events_id_says_how_far_its_reader_is() -> None:
    generation = Generation("fake", GREY, Spec(n=5, seed=0))
    whole = Cursor(30, told=True)
    cursors = [whole, whole, Cursor(12, 3), Cursor(7, 1, True), Cursor()]
    assert write_cursors(cursors) == "2*30!,12.3,7.1!,0"
    assert read_cursors("2*30!,12.3,7.1!,0", generation) == cursors
    assert read_cursors("5*31", generation) == [Cursor(30)] * 5  # there are no more pixels


def test_a_long_replay_comes_in_several_events() -> None:
    config = replace(COLOUR, height=32, width=32)
    generation = Generation("fake", config, Spec(n=10, seed=0))
    pixels = np.random.default_rng(0).integers(0, 256, (10, 1024, 3), np.uint8)
    for image, row in zip(generation.images, pixels, strict=True):
        image.run(0, Place(row, np.full(1, 1024, np.int32)))
        image.finish(FinishReason.LENGTH, 1024.0)
    generation.finish(time.monotonic())

    async def read(granularity: Granularity) -> list[Event]:
        gone = asyncio.create_task(asyncio.sleep(60))
        stream = stream_events(generation, gone, granularity=granularity)
        raw = b"".join([part async for part in stream])
        gone.cancel()
        return parse_sse(raw)

    for granularity in get_args(Granularity):
        events = asyncio.run(read(granularity))
        check_stream(events, config)
        ids = [event.id for event in events if event.name == "pixels"]
        assert ids == ["4*1024,6*0", "8*1024,2*0", "10*1024"]
        drawn = rebuild(events, config)
        np.testing.assert_array_equal(np.stack([drawn[j] for j in range(10)]), pixels)


def test_a_stream_not_resumed_frees_its_slots_after_the_grace() -> None:
    for here, decoder in held(grace_seconds=0.05):
        engine = here.scanline.models["fake"].engine
        decoder.let(3)
        raw = read_some(here, "/v1/samples", 1, "POST", json={"n": 9, "stream": True})
        generation = engine.queue.find(parse_sse(raw, complete=False)[0].data["id"])
        assert generation is not None
        until(lambda g=generation: g.finished, "the cancel")  # type: ignore[misc]
        assert {i.finish_reason for i in generation.images} == {FinishReason.CANCELLED}
        assert idle(here.scanline)


def test_two_readers_at_once_see_the_same(holding: tuple[Here, Held]) -> None:
    here, decoder = holding
    body = {"n": 3, "seed": 5, "stream": True}
    with (
        ThreadPoolExecutor(2) as pool,
        here.client.stream("POST", "/v1/samples", json=body) as first,
    ):
        identifier = first.headers["x-generation-id"]
        generation = here.scanline.models["fake"].engine.queue.find(identifier)
        assert generation is not None
        url = f"/v1/generations/{identifier}/events"
        others = [pool.submit(here.client.get, url, params={"granularity": g})
                  for g in ("row", "pixel")]  # fmt: skip
        until(lambda: generation.readers == 3)
        decoder.let(11)
        decoder.opened.set()
        for content in (first.read(), *(other.result().content for other in others)):
            assert len(check_stream(parse_sse(content), GREY)) == 3


def test_looking_at_and_cancelling_a_generation(holding: tuple[Here, Held]) -> None:
    here, decoder = holding
    with here.client.stream("POST", "/v1/samples", json={"n": 6, "stream": True}) as stream:
        url = f"/v1/generations/{stream.headers['x-generation-id']}"
        decoder.let(2)
        until(lambda: here.client.get(url).json()["images"][0]["position"] == 2)
        body = here.client.get(url).json()
        assert body["status"] == "running"
        assert [i["status"] for i in body["images"]] == ["running"] * 4 + ["waiting"] * 2
        assert {i["png"] for i in body["images"]} == {None}
        cancelled = here.client.delete(url)
        assert cancelled.status_code == 200
        assert {i["finish_reason"] for i in cancelled.json()["images"]} == {"cancelled"}
        events = parse_sse(stream.read())
        assert [e.data["finish_reason"] for e in events if e.name == "image"] == ["cancelled"] * 6
        assert events[-1].name == "completed"
    assert here.client.delete(url).json() == cancelled.json() == here.client.get(url).json()
    half = values(here.client.get(url, params={"output": "values"}).json()["images"][0], GREY)
    assert half[:2].any()
    assert not half[2:].any()
    for method in ("GET", "DELETE"):
        check_error(
            here.client.request(method, "/v1/generations/gen_no"), 404, "generation_not_found"
        )
    check_error(here.client.get("/v1/generations/gen_no/events"), 404, "generation_not_found")


def test_an_array_of_a_cancelled_drawing_is_refused(holding: tuple[Here, Held]) -> None:
    """A picture cut off would look like any other there."""
    here, decoder = holding
    body, key = {"n": 2, "seed": 3}, {"Idempotency-Key": "bulk"}
    begun = here.client.post("/v1/samples", json=body, headers=key | {"Prefer": "respond-async"})
    url = begun.headers["location"]
    generation = here.scanline.models["fake"].engine.queue.find(begun.json()["id"])
    assert generation is not None
    accept = {"Accept": "application/x-npy"}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(here.client.post, "/v1/samples", json=body, headers=key | accept)
        decoder.let(2)
        until(lambda: generation.readers == 1)
        here.client.delete(url)
        check_error(asking.result(), 503, "cancelled")


def test_a_json_client_that_leaves_frees_its_slots_whatever_the_grace() -> None:
    for here, _ in held(grace_seconds=3600):
        engine = here.scanline.models["fake"].engine

        async def leave(url: str = here.url, engine: Workshop = engine) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                asking = asyncio.create_task(client.post("/v1/samples", json={"n": 9}))
                await asyncio.to_thread(until, lambda: engine.slots_in_use)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(leave())
        until(lambda s=here.scanline: idle(s), "free slots")  # type: ignore[misc]
        # None was drawn to its end: the decoder is still held.
        cancelled = 'scanline_images_total{finish_reason="cancelled",model="fake"} 9.0'
        assert cancelled in here.client.get("/metrics").text


# --- errors -------------------------------------------------------------------------------------

WRONG_SAMPLES: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "colour", "no such field"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": -1}, "n", "greater than or equal to 1"),
    ({"n": 21}, "n", "at most 20"),
    ({"n": 10**9}, "n", "at most 20"),
    ({"n": 10**400}, "n", "n:"),
    ({"n": 1.5}, "n", "integer"),
    ({"n": "1"}, "n", "integer"),
    ({"n": True}, "n", "integer"),
    ({"n": [1]}, "n", "integer"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"seed": 2**64}, "seed", "less than or equal to 18446744073709551615"),
    ({"seed": 1.0}, "seed", "integer"),
    ({"seed": "1"}, "seed", "integer"),
    ({"seed": True}, "seed", "integer"),
    ({"label": 3}, "label", "zero, one, a frog"),
    ({"label": -1}, "label", "zero, one, a frog"),
    ({"label": "toad"}, "label", "zero, one, a frog"),
    ({"label": "\0"}, "label", "zero, one, a frog"),
    ({"label": 10**30}, "label", "zero, one, a frog"),
    ({"label": True}, "label", "label:"),
    ({"label": 1.0}, "label", "label:"),
    ({"model": "colour", "label": 0}, "label", "no classes"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": "1"}, "temperature", "number"),
    ({"temperature": float("nan")}, "temperature", "finite"),
    ({"temperature": float("inf")}, "temperature", "temperature:"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"granularity": "line"}, "granularity", "'pixel'"),
    ({"output": "gif"}, "output", "'values'"),
    ({"model": 3}, "model", "string"),
]


@pytest.mark.parametrize(("body", "param", "says"), WRONG_SAMPLES)
def test_a_wrong_field_is_named(here: Here, body: dict[str, Any], param: str, says: str) -> None:
    reply = here.client.post(
        "/v1/samples", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert says in check_error(reply, 400, param=param)
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["grew", "", "\0", "../grey", "grey\n", "\ud800"])
def test_an_unknown_model_is_404_and_names_those_there_are(here: Here, name: str) -> None:
    reply = here.client.post(
        "/v1/samples", content=json.dumps({"model": name}),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert "grey, colour" in check_error(reply, 404, "model_not_found", "model")
    check_error(here.client.get("/v1/models/grew"), 404, "model_not_found", "model")


WRONG_BODIES: dict[str, bytes] = {
    "broken": b'{"n": 1',
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"3",
    "a string": b'"n"',
    "deep": b"[" * 50_000,
    "deep and closed": b'{"n":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep objects": b'{"a":' * 8_000 + b"1" + b"}" * 8_000,
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "a field of half a surrogate": b'{"\\ud800": 1}',
    "a long field": b'{"' + b"x" * 50_000 + b'": 1}',
    "many fields": json.dumps({f"field{j}": j for j in range(3_000)}).encode(),
    "a long number": b'{"n": ' + b"9" * 10_000 + b"}",
    "a huge exponent": b'{"temperature": 1e999}',
    "NUL": b"\0\0\0",
    "UTF-16": '{"n": 0}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", WRONG_BODIES)
def test_a_wrong_body_is_400_in_the_usual_shape(here: Here, name: str) -> None:
    reply = here.client.post(
        "/v1/samples", content=WRONG_BODIES[name], headers={"Content-Type": "application/json"}
    )
    message = check_error(reply, 400)
    assert len(message) < 1100  # nothing large is sent back


def test_a_body_that_is_not_json_is_400(here: Here) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream"):
        reply = here.client.post("/v1/samples", content=b'{"n": 1}', headers={"Content-Type": kind})
        assert "application/json" in check_error(reply, 400)
    files = {"image": ("a.png", encode(random_picture()))}
    check_error(here.client.post("/v1/samples", files=files), 400)


def test_what_is_not_there_and_what_is_not_taken(here: Here) -> None:
    for path in (
        "/v1/nothing",
        "/nothing",
        "/static/nothing",
        "/v1",
        "/%00%0d%0a",
        "/v1/models/../../etc",
    ):
        check_error(here.client.get(path), 404)
    for method, path in (("GET", "/v1/samples"), ("PUT", "/v1/completions"), ("POST", "/livez"),
                         ("POST", "/static/x"), ("DELETE", "/v1/models")):  # fmt: skip
        check_error(here.client.request(method, path), 405)
    reply = here.client.post("/v1/samples", json={}, headers={"Accept": "text/html, audio/*"})
    assert "image/png" in check_error(reply, 406)


def test_head_is_get_without_a_body(here: Here) -> None:
    plain = {"Accept-Encoding": "identity"}
    for path in ("/", "/livez", "/readyz", "/v1/models", "/static/app.js"):
        head, get = (ask(path, headers=plain) for ask in (here.client.head, here.client.get))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(get.content))
    metrics = here.client.get("/metrics").text
    for method in ("GET", "HEAD"):
        assert f'{{method="{method}",route="/livez",status="200"}} 1.0' in metrics
    check = here.client.head("/v1/samples")
    assert check.status_code == 405
    assert check.headers["allow"] == "POST"
    assert here.client.post("/livez").headers["allow"] == "GET, HEAD"


def bomb(width: int, height: int) -> bytes:
    """Give a PNG whose header claims a size that its few bytes do not hold."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def test_pictures_that_cannot_be_used_are_400(here: Here) -> None:
    good = encode(random_picture())
    side = int(MAX_PIXELS**0.5) + 1
    wrong: dict[str, tuple[bytes, str]] = {
        "no picture": (b"hello", "no picture of a kind known here"),
        "nothing": (b"", "no picture of a kind known here"),
        "half": (good[: len(good) // 2], "damaged"),
        "cut short": (good[:20], "damaged"),
        "claims to be huge": (bomb(50_000, 50_000), "too large"),
        "claims to be large": (bomb(9_000, 9_000), "make it smaller"),
        "highly compressed": (encode(Picture.new("1", (side, side))), "make it smaller"),
        "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture"),
        "a PDF": (b"%PDF-1.4\n", "no picture"),
        "an EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n", "no picture"),
    }
    for name, (data, says) in wrong.items():
        reply = here.complete(data, known_rows=1)
        assert says in check_error(reply, 400, "invalid_image", "image"), name


def test_completions_refuse_what_makes_no_sense(here: Here) -> None:
    good = encode(random_picture())
    transparent = encode(Picture.new("LA", (5, 6)))
    assert "known_rows" in check_error(here.complete(good), 400, param="image")
    assert "0 to 5" in check_error(here.complete(good, known_rows=6), 400, param="known_rows")
    check_error(here.complete(good, known_rows=-1), 400, param="known_rows")
    check_error(here.complete(good, known_rows="two"), 400, param="known_rows")
    both = here.complete(good, transparent, known_rows=1)
    assert "not both" in check_error(both, 400, param="mask")
    assert "nothing to draw" in check_error(here.complete(good, good), 400, param="mask")
    small = encode(Picture.new("LA", (2, 2)))
    assert "the mask is 2 × 2" in check_error(here.complete(good, small), 400, param="mask")
    check_error(here.complete(good, b"no mask"), 400, param="mask")
    check_error(here.complete(good, known_rows=1, fit="stretch"), 400, param="fit")
    check_error(here.complete(good, known_rows=1, colour=1), 400, param="colour")
    check_error(here.complete(good, known_rows=1, model="no"), 404, param="model")
    check_error(here.complete(good, known_rows=1, label="toad"), 400, param="label")
    check_error(here.complete(good, known_rows=1, n=0), 400, param="n")
    check_error(here.complete(good, known_rows=1, n=10**9), 400, param="n")
    for seed in (-1, 2**64, 1.5, "x", "true"):
        check_error(here.complete(good, known_rows=1, seed=seed), 400, param="seed")
    for temperature in ("nan", "inf", -1, 3, "hot"):
        reply = here.complete(good, known_rows=1, temperature=temperature)
        check_error(reply, 400, param="temperature")
    check_error(here.client.post("/v1/completions", data={"known_rows": "1"}), 400, param="image")
    text = here.client.post("/v1/completions", data={"image": "text", "known_rows": "1"})
    check_error(text, 400, param="image")
    check_error(here.client.post("/v1/completions"), 400)
    check_error(here.client.post("/v1/completions", json={"image": "x"}), 400)
    broken = {"Content-Type": "multipart/form-data"}
    check_error(here.client.post("/v1/completions", content=b"--x", headers=broken), 400)
    cut = {"Content-Type": "multipart/form-data; boundary=x"}
    check_error(here.client.post("/v1/completions", content=b"--x\r\nnonsense", headers=cut), 400)


def test_a_body_over_the_limit_is_413(here: Here) -> None:
    large = b"x" * 1_500_000
    check_error(here.client.post("/v1/samples", content=large), 413, "too_large")
    check_error(here.complete(large, known_rows=1), 413, "too_large")

    def parts() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 50_000

    chunked = here.client.post(
        "/v1/samples", content=parts(), headers={"Content-Type": "application/json"}
    )
    check_error(chunked, 413, "too_large")


def test_a_hundred_megabytes_are_refused_before_they_are_read(here: Here) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1_000_000

    headers = {"Content-Length": str(10**8), "Content-Type": "multipart/form-data; boundary=x"}
    reply = here.client.post("/v1/completions", content=parts(), headers=headers)
    assert "1,000,000" in check_error(reply, 413, "too_large")


def test_a_full_queue_is_429_before_the_picture_is_decoded() -> None:
    for here, _ in held(max_images=4, max_waiting=4):
        with ThreadPoolExecutor(2) as pool:
            engine = here.scanline.models["fake"].engine
            waiting = [pool.submit(here.samples, n=4)]
            until(lambda e=engine: e.slots_in_use == 4)  # type: ignore[misc]
            waiting.append(pool.submit(here.samples, n=4))
            until(lambda e=engine: e.queue.waiting == 4)  # type: ignore[misc]
            for refused in (here.samples(n=1), here.complete(b"no picture", known_rows=1)):
                check_error(refused, 429, "queue_full")
                assert refused.json()["error"]["type"] == "rate_limit_error"
                assert 1 <= int(refused.headers["retry-after"]) <= 120
            here.scanline.models["fake"].engine.decoder.opened.set()  # type: ignore[attr-defined]
            assert [w.result().status_code for w in waiting] == [200, 200]
        assert here.samples(n=1).status_code == 200


def test_a_decoder_that_raises_is_500_and_an_error_event() -> None:
    decoder = FakeDecoder(GREY, 2)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("a secret about the inside")

    for here in serve(None, fake=decoder):
        decoder.before_step = fail
        reply = here.samples(n=3)
        assert "secret" not in check_error(reply, 500, "generation_failed")
        assert reply.json()["error"]["type"] == "server_error"
        events = parse_sse(here.samples(n=2, stream=True).content)
        assert [e.name for e in events] == ["started", "image", "image", "error"]
        assert events[-1].data["error"]["code"] == "generation_failed"
        assert set(events[-1].data["error"]) == {"message", "type", "param", "code"}
        identifier = events[0].data["id"]
        assert here.client.get(f"/v1/generations/{identifier}").json()["error"]
        decoder.before_step = lambda slots: None
        assert here.samples(n=3).status_code == 200
        assert idle(here.scanline)
        assert 'finish_reason="error",model="fake"} 5.0' in here.client.get("/metrics").text


def test_a_bug_is_500_with_an_id_a_log_line_and_a_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("inside")

    for here in serve({"cors_origins": "https://page.example"}):
        monkeypatch.setattr("scanline.service.api.routes._reply", bug)
        reply = here.client.post(
            "/v1/samples",
            json={},
            headers={"X-Request-ID": "mine", "Origin": "https://page.example"},
        )
        assert "inside" in check_error(reply, 500, "internal_error")  # "… inside the server"
        assert "KeyError" not in reply.text
        assert reply.headers["x-request-id"] == "mine"
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
        monkeypatch.undo()
        assert any("mine" in r.getMessage() and r.exc_info for r in caplog.records)
        count = 'scanline_requests_total{method="POST",route="/v1/samples",status="500"} 1.0'
        assert count in here.client.get("/metrics").text
        assert here.samples().status_code == 200


def test_loading_ready_draining() -> None:
    loaded = threading.Event()
    scanline, _ = build()
    opening = scanline.open

    def open_models() -> None:
        assert loaded.wait(60)
        opening([Checkpoint("grey", tiny_model())])

    with (
        listening(create_app(scanline, open_models), lambda: True) as url,
        httpx.Client(base_url=url) as client,
    ):
        try:
            assert client.get("/livez").text == "ok\n"
            check_error(client.get("/readyz"), 503, "not_ready")
            check_error(client.post("/v1/samples", json={}), 503, "not_ready")
            assert client.get("/v1/models").json() == {"object": "list", "data": []}
            assert client.get("/metrics").status_code == 200
        finally:
            loaded.set()
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/samples", json={}).status_code == 200
        scanline.drain()
        assert client.get("/livez").status_code == 200
        check_error(client.get("/readyz"), 503, "not_ready")
        reply = client.post("/v1/samples", json={})
        check_error(reply, 503, "closing")
        assert int(reply.headers["retry-after"]) >= 1


def test_models_that_cannot_be_opened_are_a_failure_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    scanline, _ = build()
    monkeypatch.setattr("scanline.service.server.open_decoder", broken)
    scanline.open([Checkpoint("grey", tiny_model())])
    assert not scanline.ready
    assert scanline.failure is not None
    assert "no room" in scanline.failure


# --- around the routes --------------------------------------------------------------------------


def test_an_api_key_guards_v1_and_nothing_else() -> None:
    for here in serve({"api_key": "clé-secrète"}):
        paths = [("POST", "/v1/samples"), ("GET", "/v1/models"), ("GET", "/v1/generations/x")]
        wrong: list[dict[str, str | bytes]] = [
            {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"},
            {"Authorization": "Basic abc"}, {"Authorization": b"Bearer \xff\xfe"},
            {"Authorization": "Bearer cle-secrete"},
        ]  # fmt: skip
        for method, path in paths:
            for headers in wrong:
                encoded = {k: v if isinstance(v, bytes) else v.encode() for k, v in headers.items()}
                raw = [(k.encode(), v) for k, v in encoded.items()]
                reply = here.client.request(
                    method, path, json={} if method == "POST" else None, headers=raw
                )
                check_error(reply, 401, "invalid_api_key")
                assert reply.json()["error"]["type"] == "authentication_error"
                assert reply.headers["www-authenticate"] == "Bearer"
        right = [(b"Authorization", "Bearer clé-secrète".encode())]
        assert here.client.post("/v1/samples", json={}, headers=right).status_code == 200
        for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/"):
            assert here.client.get(path).status_code == 200


def test_cross_origin_calls_are_for_the_origins_named() -> None:
    for here in serve({"cors_origins": "https://a.example, https://b.example"}):
        ask = {"Origin": "https://b.example", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
        allowed = here.client.options("/v1/samples", headers=ask)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://b.example"
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        refused = here.client.options("/v1/samples", headers=ask | {"Origin": "https://c.example"})
        assert "access-control-allow-origin" not in refused.headers
        for origin, there in (("https://a.example", True), ("https://c.example", False)):
            reply = here.client.post("/v1/samples", json={}, headers={"Origin": origin})
            assert ("access-control-allow-origin" in reply.headers) is there
        wrong = here.client.post("/v1/x", headers={"Origin": "https://a.example"})
        assert wrong.headers["access-control-allow-origin"] == "https://a.example"
        exposed = reply.headers.get("access-control-expose-headers", "") + wrong.headers.get(
            "access-control-expose-headers", "")  # fmt: skip
        for name in ("X-Request-ID", "X-Generation-ID", "X-Seed", "Retry-After"):
            assert name in exposed


def test_without_the_setting_no_origin_is_allowed(here: Here) -> None:
    reply = here.client.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_every_reply_has_an_id_the_callers_if_it_is_a_plain_one(here: Here) -> None:
    for path in ("/livez", "/v1/models", "/v1/nothing", "/", "/metrics"):
        one, other = (here.client.get(path).headers["x-request-id"] for _ in range(2))
        assert one != other
    good = "trace-1234/abc=~" + "x" * 100
    assert here.client.get("/livez", headers={"X-Request-ID": good}).headers["x-request-id"] == good
    junk: list[bytes] = [b"", b"two words", b"x" * 129, "é".encode(), b"tab\tin", b"\xff"]
    for value in junk:
        reply = here.client.get("/livez", headers=[(b"X-Request-ID", value)])
        assert reply.headers["x-request-id"].startswith("req_")


def test_a_path_cannot_forge_a_log_line(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "scanline.access"):
        here.client.get("/x%0a12:00:00 INFO forged%1b[31m")
        until(lambda: any("forged" in r.getMessage() for r in caplog.records))
    (line,) = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert "\n" not in line
    assert "\x1b" not in line


def test_metrics_say_what_happened_with_bounded_labels() -> None:
    for here in serve():
        here.samples(n=3, model="grey")
        parse_sse(here.samples(n=1, model="grey", stream=True).content)
        here.samples(model="colour", n=0)

        def labels(client: httpx.Client = here.client) -> set[str]:
            lines = client.get("/metrics").text.splitlines()
            return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

        text = here.client.get("/metrics").text
        assert here.client.get("/metrics").headers["content-type"].startswith("text/plain")
        for line in (
            'scanline_images_total{finish_reason="length",model="grey"} 4.0',
            'scanline_images_total{finish_reason="error",model="colour"} 0.0',
            f'scanline_pixels_total{{model="grey"}} {4.0 * GREY.pixels}',
            'scanline_queue_seconds_count{model="grey"} 2.0',
            'scanline_first_pixel_seconds_count{model="grey"} 2.0',
            'scanline_running_images{model="grey"} 0.0',
            'scanline_waiting_images{model="colour"} 0.0',
            'scanline_slots{model="grey"} 8.0',
            'scanline_requests_total{method="POST",route="/v1/samples",status="400"} 1.0',
        ):
            assert line in text, f"{line}\n\n{text}"
        assert 'scanline_step_seconds_count{model="grey"}' in text
        for path in ("/v1/generations/x", "/v1/generations/x/events", "/v1/models/x", "/nothing",
                     "/static/x"):  # fmt: skip
            here.client.get(path)
        before = labels()
        for j in range(30):
            here.client.get(f"/v1/generations/{j}")
            here.client.get(f"/v1/generations/{j}/events")
            here.client.get(f"/v1/models/{j}")
            here.client.get(f"/{j}")
            here.client.get(f"/static/{j}")
            here.samples(seed=j)
        assert labels() == before


def test_the_list_of_models(here: Here) -> None:
    body = here.client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [m["id"] for m in body["data"]] == ["grey", "colour"]
    grey, colour = body["data"]
    assert grey["object"] == "model"
    assert grey["owned_by"] == "scanline"
    assert (grey["width"], grey["height"], grey["channels"]) == (5, 6, 1)
    assert grey["classes"] == ["zero", "one", "a frog"]
    assert grey["bits_per_dim"] == 5.5
    assert grey["steps"] == 30
    assert grey["backend"] == "reference"
    assert grey["slots"] == 8
    assert grey["parameters"] == sum(p.numel() for p in tiny_model().parameters())
    assert abs(grey["created"] - time.time()) < 3600
    assert colour["classes"] == []
    assert colour["bits_per_dim"] is None
    assert here.client.get("/v1/models/colour").json() == colour
    assert here.samples(seed=1).json()["model"] == "grey"  # the default is the first


@pytest.mark.parametrize(
    ("facts", "figure"),
    [
        ({}, None),
        ({"validation": []}, None),
        ({"validation": [{"bits_per_dim": 5.0}, {"bits_per_dim": 4.0}]}, 4.0),
        ({"validation": [{"bits_per_dim": 4.0}], "test": {"bits_per_dim": 4.5}}, 4.5),
        ({"test": {"bits_per_dim": 4.5}, "test_with_label": {"bits_per_dim": 4.4}}, 4.5),
    ],
    ids=["nothing", "none yet", "the last validation", "the test above it", "without a label"],
)
def test_the_figure_of_a_model(facts: dict[str, Any], figure: float | None) -> None:
    scanline = Scanline(settings())
    app = create_app(scanline, lambda: scanline.open([Checkpoint("grey", tiny_model(), facts)]))
    with listening(app, lambda: scanline.ready) as url:
        assert httpx.get(f"{url}/v1/models/grey").json()["bits_per_dim"] == figure


def test_the_documentation_describes_what_there_is(here: Here) -> None:
    page = here.client.get("/docs")
    assert page.status_code == 200
    assert "swagger" in page.text.lower()
    parts = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(parts) == 3
    for part in parts:  # nothing from elsewhere: it works without a network
        assert here.client.get(part).status_code == 200, part
    schema = here.client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.")
    assert schema["info"]["title"] == "Scanline"
    operations = {(m.upper(), p) for p, ms in schema["paths"].items() for m in ms}
    assert operations >= {
        ("POST", "/v1/samples"), ("POST", "/v1/completions"), ("GET", "/v1/models"),
        ("GET", "/v1/generations/{identifier}"), ("DELETE", "/v1/generations/{identifier}"),
        ("GET", "/v1/generations/{identifier}/events"), ("GET", "/livez"), ("GET", "/readyz"),
        ("GET", "/metrics"),
    }  # fmt: skip
    for name, part in schema["components"]["schemas"].items():
        assert part.get("examples"), name
    seen: set[str] = set()

    def follow(part: object) -> None:
        """Check that every reference leads somewhere."""
        if isinstance(part, dict):
            if isinstance(reference := part.get("$ref"), str):
                seen.add(reference)
                found: Any = schema
                for key in reference.removeprefix("#/").split("/"):
                    found = found[key]
            for value in part.values():
                follow(value)
        elif isinstance(part, list):
            for value in part:
                follow(value)

    follow(schema)
    assert "#/components/schemas/ErrorReply" in seen
    identifiers = []
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            identifiers.append(operation["operationId"])
            assert operation["responses"]
            assert "HTTPValidationError" not in json.dumps(operation["responses"])
            assert operation.get("summary"), path
            declared = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
    assert len(identifiers) == len(set(identifiers))
    form = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    assert list(form) == ["multipart/form-data"]
    media = schema["paths"]["/v1/samples"]["post"]["responses"]["200"]["content"]
    assert set(media) == {
        "application/json", "image/png", "application/zip", "application/x-npy",
        "text/event-stream",
    }  # fmt: skip
    example = schema["components"]["schemas"]["SampleRequest"]["examples"][0]
    assert set(example) <= set(schema["components"]["schemas"]["SampleRequest"]["properties"])


def test_the_page_is_served(here: Here) -> None:
    page = here.client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "<" in page.text
