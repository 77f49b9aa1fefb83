"""Server-sent events: their format, their rate, and the streaming reply."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, get_args

from fastapi import Request
from fastapi.responses import StreamingResponse
from prometheus_client import Gauge
from pydantic_core import to_json

from scanline.service.http.disconnect import ClientDisconnectedError, WaitingClient, watch_client

KEEP_ALIVE_SECONDS = 15.0
EVENTS_PER_SECOND = 60  # of one stream, at most
EVENTS_PER_CORE = 60  # per second, of all streams, for each core: 1 % of a core's time
MAX_EVENTS_IN_ALL = 240  # per second, of all streams: less than a tenth of the event loop's time
MAX_PAUSE = 0.5  # seconds between two events of a stream, however many streams there are
# Streams send at whole ticks, because every wake-up of the event loop costs time.
TICK = 1 / EVENTS_PER_SECOND  # seconds
# One line only: after an empty line some clients would report an event.
KEEP_ALIVE_COMMENT = b": keep-alive\n"
# Reconnection time of a browser's EventSource. Its default is up to 5 s, in Firefox.
RETRY_FIELD = b"retry: 1000\n"  # milliseconds
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamPacer:
    """Limiter of the event rate of all streams together.

    Streams that send many events share a budget of events per second: the more there are, the
    longer each pauses between two events. Streams that wait, or send few events, do not count. The
    event loop competes with the decoder for CPU time, so the budget grows with the number of cores.

    Args:
        cores: Number of cores.
    """

    def __init__(self, cores: int) -> None:
        self._paced_streams = 0
        self._budget = min(EVENTS_PER_CORE * cores, MAX_EVENTS_IN_ALL)  # events per second

    @contextlib.contextmanager
    def pace(self) -> Iterator[Callable[[float], float]]:
        """Share the budget inside the block.

        Yields:
            A function from the time now to the seconds until the next event. The stream counts
            from its first call.
        """
        counted = False

        def pause(now: float) -> float:
            nonlocal counted
            if not counted:
                counted = True
                self._paced_streams += 1
            seconds = min(self._paced_streams / self._budget, MAX_PAUSE)
            ticks = max(1, math.ceil(seconds / TICK - 1e-9))
            return (round(now / TICK) + ticks) * TICK - now

        try:
            yield pause
        finally:
            self._paced_streams -= counted


def stream_schema(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI documentation of a stream.

    Args:
        shapes: The model of each event's data, by the event's name.
    """
    events = {event: _schema_of(shape) for event, shape in shapes.items()}
    schema = {
        "type": "object",
        "description": "A server-sent event. Its data is one line of JSON.",
        "properties": {
            "event": {"type": "string", "enum": [*events]},
            "data": {"type": "string"},
            "id": {"type": "string"},
        },
        "required": ["event", "data"],
        "x-events": events,
    }
    return {"text/event-stream": {"schema": schema}}


def _schema_of(shape: Any) -> dict[str, Any]:
    if members := get_args(shape):  # of a union
        return {"anyOf": [_schema_of(member) for member in members]}
    return {"$ref": schema_ref(shape.__name__)}


def schema_ref(name: str) -> str:
    """Return the reference to a component of the OpenAPI schema."""
    return f"#/components/schemas/{name}"


def sse_event(name: str, data: Any, identifier: str | None = None) -> bytes:
    """Format an event whose data is a model or plain values, as one line of JSON."""
    # ASCII only, because some clients split lines at Unicode line breaks too. JSON escapes all
    # line breaks, so there is no need to search for them, as FastAPI's formatter slowly does.
    return sse_event_from_json(name, to_json(data, ensure_ascii=True), identifier)


def sse_event_from_json(name: str, data: bytes, identifier: str | None = None) -> bytes:
    """Format an event whose data is already one line of ASCII JSON."""
    ending = "" if identifier is None else f"\nid: {identifier}"
    return f"event: {name}\ndata: ".encode() + data + f"{ending}\n\n".encode()


def stream_response(
    request: Request,
    events: Callable[[WaitingClient], AsyncIterator[bytes]],
    open_streams: Gauge,
    reading: contextlib.AbstractContextManager[None],
    headers: Mapping[str, str],
    *,
    resumable: bool = False,
) -> StreamingResponse:
    """Return a reply that streams events until they end or the client disconnects.

    Args:
        request: The request.
        events: Function from the client to its formatted events.
        open_streams: Gauge that counts the stream while it is open.
        reading: Context in which the events are read.
        headers: Further headers of the reply.
        resumable: Whether an interrupted stream can be resumed. It begins with ``RETRY_FIELD``.
    """

    async def body() -> AsyncIterator[bytes]:
        if resumable:
            yield RETRY_FIELD
        with (
            open_streams.track_inprogress(),
            reading,
            contextlib.suppress(ClientDisconnectedError),
        ):
            async with watch_client(request) as client:
                async for event in events(client):
                    yield event

    return StreamingResponse(
        body(), media_type="text/event-stream", headers={**_HEADERS, **headers}
    )
