"""Waiting for a generation's news or its end, for as long as its client is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from fastapi import Request

from scanline.service.engine.generation import FinishReason, Generation
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.queue import ClosedError
from scanline.service.http.errors import RETRY_SOON, ApiError, to_api_error


class ClientDisconnectedError(Exception):
    """The client closed its connection before the answer was complete."""


class WaitingClient(NamedTuple):
    """Who waits for a reply: whose turns it has, and a task that ends when it leaves."""

    caller: str
    gone: asyncio.Task[None]


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def watch_client(request: Request) -> AsyncIterator[WaitingClient]:
    """Watch, inside the block, whether the client leaves; its request's body has been read."""
    gone = asyncio.create_task(_client_gone(request))
    try:
        yield WaitingClient(request.state.caller, gone)
    finally:
        gone.cancel()


async def _called_back(
    generation: Generation,
    register: Callable[[Callable[[], None]], None],
    client: WaitingClient,
    seconds: float | None,
) -> None:
    """Wait until another thread calls what is registered, or ``seconds`` have passed.

    Raises ``ClientDisconnectedError`` as soon as the client leaves.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(gone: asyncio.Task[None] | None = None) -> None:
        if not over.done():
            over.set_result(None)

    def wake() -> None:
        # The loop may be closed by the time the engine calls.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    # Lighter than asyncio.wait, and every event of every stream waits here.
    client.gone.add_done_callback(end)
    timer = None if seconds is None else loop.call_later(seconds, end)
    register(wake)
    try:
        await over
    finally:
        client.gone.remove_done_callback(end)
        if timer is not None:
            timer.cancel()
        generation.remove_callback(wake)  # or those who come and go would pile up
    if client.gone.done():
        raise ClientDisconnectedError


async def wait_for_change(
    generation: Generation,
    client: WaitingClient,
    seconds: float | None,
    seen: int | None = None,
) -> None:
    """Wait for a generation's next change, or until ``seconds`` have passed.

    ``seen`` is its ``changes`` when it was last read, so that none in between is missed. Raises
    ``ClientDisconnectedError`` as soon as the client leaves.
    """
    await _called_back(
        generation, lambda wake: generation.add_change_callback(wake, seen), client, seconds
    )


async def wait_until_finished(
    generation: Generation, client: WaitingClient, seconds: float | None = None
) -> None:
    """Wait for a generation's end, or until ``seconds`` have passed.

    Raises ``ClientDisconnectedError`` if the client leaves before both.
    """
    await _called_back(generation, generation.add_done_callback, client, seconds)


async def wait_for_result(
    request: Request, engine: EngineProtocol, generation: Generation, grace: float | None = 0
) -> None:
    """Wait for all of a generation; if its client leaves, it is cancelled after ``grace`` seconds.

    None is the queue's own (``QueueLimits.grace``). Raises ``ApiError`` where drawing fails, and
    ``ClientDisconnectedError`` if the client leaves.
    """
    with engine.queue.reading(generation, grace):
        async with watch_client(request) as client:
            await wait_until_finished(generation, client)
    if failed := generation_error(generation):
        raise failed


def generation_error(generation: Generation) -> ApiError | None:
    """Give the error that a finished generation ended with, if any: ours, or our shutting down."""
    if generation.error is None:
        return None
    if generation.closed:
        return to_api_error(ClosedError(generation.error))
    return ApiError(500, generation.error, code="generation_failed")


def incomplete_error(generation: Generation) -> ApiError | None:
    """Give the error of a finished generation whose pictures are not all whole.

    For replies that hold nothing but pictures: one cut off would look like any other.
    """
    if all(image.finish_reason is FinishReason.LENGTH for image in generation.images):
        return None
    message = "the drawing was cancelled; ask for it again"
    return generation_error(generation) or ApiError(
        503, message, code="cancelled", headers=RETRY_SOON
    )
