"""Server-sent events: how one is written, and the reply that carries a generation's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, get_args

from fastapi import Request
from fastapi.responses import StreamingResponse
from prometheus_client import Gauge
from pydantic_core import to_json

from scanline.service.engine.generation import Generation
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.http.negotiation import generation_headers
from scanline.service.http.waiting import ClientDisconnectedError, WaitingClient, watch_client

KEEP_ALIVE_SECONDS = 15.0
EVENTS_PER_SECOND = 60  # at most, of one stream
EVENTS_PER_CORE = 60  # a second, of all streams, for each core: a hundredth of its time
EVENTS_IN_ALL = 240  # a second, at most, of all streams: less than a tenth of the event loop's time
LONGEST_PAUSE = 0.5  # seconds between two events of a stream, however many streams there are
TICK = 1 / EVENTS_PER_SECOND  # seconds: streams speak at whole ticks, since each waking costs
KEEP_ALIVE_COMMENT = (
    b": keep-alive\n"  # an empty line behind it, and some clients would see an event
)
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamPacer:
    """The streams being sent. Those that tell of pixels share the events: more of them, less often.

    They speak at whole ticks, so that the event loop is woken once for many. Those that wait in
    the queue, or send looks at whole images, take no part of it. The event loop takes its time from
    the ``cores`` that draw: the fewer they are, the fewer the events.
    """

    def __init__(self, gauge: Gauge, cores: int) -> None:
        self._telling, self._gauge = 0, gauge
        self._events = min(EVENTS_PER_CORE * cores, EVENTS_IN_ALL)  # a second

    def track(self) -> contextlib.AbstractContextManager[None]:
        """Count an open stream inside the block."""
        return self._gauge.track_inprogress()

    @contextlib.contextmanager
    def pace(self) -> Iterator[Callable[[float], float]]:
        """Give what says, at a time, for how many seconds to pause; once called it counts."""
        telling = False

        def pause(now: float) -> float:
            nonlocal telling
            if not telling:
                telling = True
                self._telling += 1
            seconds = min(self._telling / self._events, LONGEST_PAUSE)
            ticks = max(1, math.ceil(seconds / TICK - 1e-9))
            return (round(now / TICK) + ticks) * TICK - now

        try:
            yield pause
        finally:
            self._telling -= telling


def stream_schema(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Document a stream: the shape of each event's data, by the event's name."""
    named = {event: _named(shape) for event, shape in shapes.items()}
    event = {
        "type": "object",
        "description": "One of the server-sent events; its data is one line of JSON.",
        "properties": {
            "event": {"type": "string", "enum": [*named]},
            "data": {"type": "string"},
            "id": {"type": "string"},
        },
        "required": ["event", "data"],
        "x-events": named,
    }
    return {"text/event-stream": {"schema": event}}


def _named(shape: Any) -> dict[str, Any]:
    if members := get_args(shape):  # of a union
        return {"anyOf": [_named(member) for member in members]}
    return {"$ref": schema_ref(shape.__name__)}


def schema_ref(name: str) -> str:
    """Say where in the schema a shape is."""
    return f"#/components/schemas/{name}"


def sse_event(name: str, data: Any, identifier: str | None = None) -> bytes:
    """Write an event whose data is a model, or plain values, as one line of JSON."""
    # JSON escapes every line break, those outside ASCII too, at which some clients split: no need
    # to search for them as FastAPI does, which takes longer than all of this.
    return sse_event_from_json(name, to_json(data, ensure_ascii=True), identifier)


def sse_event_from_json(name: str, line: bytes, identifier: str | None = None) -> bytes:
    """Write an event whose data is written already, as one line of ASCII."""
    ending = "" if identifier is None else f"\nid: {identifier}"
    return f"event: {name}\ndata: ".encode() + line + f"{ending}\n\n".encode()


def stream_response(
    request: Request,
    engine: EngineProtocol,
    generation: Generation,
    events: Callable[[WaitingClient], AsyncIterator[bytes]],
    streams: StreamPacer,
    grace: float | None = None,
) -> StreamingResponse:
    """Reply with what ``events`` yields; it is given the client.

    ``streams`` counts it while it is open. ``grace`` is how many seconds the generation then waits
    for another reader, by default the queue's own (``QueueLimits.grace``).
    """

    async def body() -> AsyncIterator[bytes]:
        with (
            streams.track(),
            engine.queue.reading(generation, grace),
            contextlib.suppress(ClientDisconnectedError),
        ):
            async with watch_client(request) as client:
                async for event in events(client):
                    yield event

    headers = _HEADERS | generation_headers(generation)
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)
