"""Detection of clients that disconnect while a reply is prepared."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from fastapi import Request


class ClientDisconnectedError(Exception):
    """The client closed its connection before the reply was complete."""


class WaitingClient(NamedTuple):
    """Client that waits for a reply.

    ``caller`` is the API key or address under which its work is queued. ``gone`` is a task that
    ends when the client disconnects.
    """

    caller: str
    gone: asyncio.Task[None]


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def watch_client(request: Request) -> AsyncIterator[WaitingClient]:
    """Watch for the client's disconnect inside the block. The request body must have been read."""
    gone = asyncio.create_task(_wait_for_disconnect(request))
    try:
        yield WaitingClient(request.state.caller, gone)
    finally:
        gone.cancel()
