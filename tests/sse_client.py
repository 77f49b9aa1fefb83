"""Strict parser of event streams."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str
    data: Any
    id: str | None


def parse_sse(raw: bytes, complete: bool = True) -> list[Event]:
    """Parse a stream, and fail on anything that the API does not document.

    Fields are ``event``, ``data`` (one line of JSON), ``id``, ``retry`` or a comment, each once and
    each followed by one space; a blank line ends an event. Unless ``complete``, a last part that
    was cut off is left out.
    """
    *blocks, rest = raw.decode("utf-8").replace("\r\n", "\n").split("\n\n")
    assert not (complete and rest), f"the stream ends within an event: {rest!r}"
    events: list[Event] = []
    for block in blocks:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            if line.startswith(":"):
                continue
            name, colon, value = line.partition(": ")
            assert colon, f"not a field: {line!r}"
            assert name in ("event", "data", "id", "retry"), line
            assert name != "retry" or value.isdecimal(), line
            assert name not in fields, block
            fields[name] = value
        if fields:
            events.append(Event(fields["event"], json.loads(fields["data"]), fields.get("id")))
    return events


def rebuild(events: Sequence[Event], config: ModelConfig) -> dict[int, NDArray[np.uint8]]:
    """Assemble images from a stream's pixels; check that each pixel comes once and in order."""
    drawn: dict[int, list[int]] = {}
    for event in events:
        if event.name != "pixels":
            continue
        for update in event.data["updates"]:
            values = drawn.setdefault(update["index"], [])
            assert update["position"] * config.channels == len(values)
            assert len(update["values"]) % config.channels == 0
            assert update["values"]
            values += update["values"]
    return {
        index: np.array(values, np.uint8).reshape(-1, config.channels)
        for index, values in drawn.items()
    }
