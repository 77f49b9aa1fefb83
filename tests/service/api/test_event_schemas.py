"""Events of streams have exactly the shapes that are documented."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter

from scanline.service.api.event_schemas import Completed, Pixels, Started
from scanline.service.api.replies import PngImage, ValuesImage
from scanline.service.api.requests import Granularity
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.http.sse import sse_event
from scanline.service.openai.events import CompletedImage, PartialImage
from tests.service.fixtures import GREY, streamed
from tests.sse_client import parse_sse, rebuild


def check_shape(shape: Any, data: Any) -> None:
    """Check that data has a shape, without undocumented fields."""
    adapter = TypeAdapter[Any](shape)
    assert adapter.dump_python(adapter.validate_python(data), mode="json") == data


@pytest.mark.parametrize(("output", "image"), [("png", PngImage), ("values", ValuesImage)])
def test_every_event_has_its_shape(
    client: httpx.Client, output: str, image: type[BaseModel]
) -> None:
    body = {"stream": True, "n": 3, "output": output, "granularity": "pixel"}
    events = parse_sse(client.post("/v1/samples", json=body).content)
    shapes = {"started": Started, "pixels": Pixels, "image": image, "completed": Completed}
    assert {event.name for event in events} == set(shapes)
    for event in events:
        check_shape(shapes[event.name], event.data)


def test_every_openai_event_has_its_shape(client: httpx.Client) -> None:
    body = {"prompt": "", "stream": True, "partial_images": 1}
    events = parse_sse(client.post("/v1/images/generations", json=body).content)
    shapes = [PartialImage, CompletedImage]
    for event, shape in zip(events, shapes, strict=True):
        check_shape(shape, event.data)


def test_event_data_is_one_line() -> None:
    text = "two\nlines\r\u2028 and \N{FROG FACE}\x85"
    raw = sse_event("said", {"text": text}, "7")
    assert len(raw.decode().splitlines()) == 4  # splits at more characters than SSE clients do
    (event,) = parse_sse(raw)
    assert (event.name, event.data, event.id) == ("said", {"text": text}, "7")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("granularity", "size"), [("pixel", 1), ("row", 20), ("auto", 13 * 20)])
def test_every_value_is_written_at_its_position(
    channels: int, granularity: Granularity, size: int
) -> None:
    """Covers all 256 values, complete images, and one that was cancelled within a row."""
    config = dataclasses.replace(
        GREY, height=13, width=20, channels=channels, head="logistic_mixture"
    )
    canvas = np.arange(config.pixels * channels).astype(np.uint8).reshape(-1, channels)
    generation = Generation("fake", config, GenerationSpec(n=3, seed=0))
    for image in generation.images:
        cut = image.index == 1
        position = np.full(1, 47 if cut else config.pixels, np.int32)
        image.start(CanvasView(canvas, position))
        image.finish(FinishReason.CANCELLED if cut else FinishReason.LENGTH, 0.0)
    generation.finish(generation.clock())

    events = streamed(generation, granularity)
    drawn = rebuild(events, config)
    assert sorted(drawn) == [0, 1, 2]
    for index, pixels in drawn.items():
        np.testing.assert_array_equal(pixels, canvas[: 47 if index == 1 else None])
    updates = [
        update for event in events if event.name == "pixels" for update in event.data["updates"]
    ]
    lengths: dict[int, list[int]] = {index: [] for index in drawn}
    for update in updates:
        lengths[update["index"]].append(len(update["values"]) // channels)
    whole = [size] * (config.pixels // size)
    assert lengths[0] == lengths[2] == whole
    cut_off = [size] * (47 // size) + ([47 % size] if 47 % size else [])
    assert lengths[1] == cut_off
