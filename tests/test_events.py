"""Streams: every event has the shape that its type documents, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from scanline.service.api.events import Completed, Pixels, Started
from scanline.service.api.replies import PngImage, ValuesImage
from scanline.service.http.sse import sse_event
from scanline.service.openai.events import CompletedImage, PartialImage
from tests.service_fixtures import build, listening, parse_sse


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    scanline, app = build()
    with listening(app, lambda: scanline.ready) as url, httpx.Client(base_url=url) as client:
        yield client


def check_shape(shape: Any, data: Any) -> None:
    """Check that data is of a shape, and that the shape leaves nothing of it out."""
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


def test_every_event_of_openais_has_its_shape(client: httpx.Client) -> None:
    body = {"prompt": "", "stream": True, "partial_images": 1}
    events = parse_sse(client.post("/v1/images/generations", json=body).content)
    shapes = [PartialImage, CompletedImage]
    for event, shape in zip(events, shapes, strict=True):
        check_shape(shape, event.data)


def test_an_event_is_one_line_of_data_whatever_it_holds() -> None:
    text = "two\nlines\r\u2028 and \N{FROG FACE}\x85"
    raw = sse_event("said", {"text": text}, "7")
    assert len(raw.decode().splitlines()) == 4  # which splits at more than SSE does
    (event,) = parse_sse(raw)
    assert (event.name, event.data, event.id) == ("said", {"text": text}, "7")
