"""Waiting for a generation to change or to finish while its client is connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from fastapi import Request

from scanline.service.engine.generation import Generation
from scanline.service.engine.queue import Queue
from scanline.service.errors import generation_error, incomplete_error
from scanline.service.http.disconnect import ClientDisconnectedError, WaitingClient, watch_client


async def _wait_for_callback(
    generation: Generation,
    register: Callable[[Callable[[], None]], None],
    client: WaitingClient,
    seconds: float | None,
) -> None:
    """Wait until another thread calls the registered callback, or ``seconds`` have passed.

    Raises:
        ClientDisconnectedError: As soon as the client disconnects.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(gone: asyncio.Task[None] | None = None) -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        # The loop may be closed by the time the engine's thread calls.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    # Cheaper than asyncio.wait, which matters because every event of every stream waits here.
    client.gone.add_done_callback(end)
    timer = None if seconds is None else loop.call_later(seconds, end)
    register(wake)
    try:
        await done
    finally:
        client.gone.remove_done_callback(end)
        if timer is not None:
            timer.cancel()
        generation.remove_callback(wake)  # otherwise callbacks of past readers would accumulate
    if client.gone.done():
        raise ClientDisconnectedError


async def wait_for_change(
    generation: Generation,
    client: WaitingClient,
    seconds: float,
    seen: int,
) -> None:
    """Wait for a generation's next change.

    Args:
        generation: The generation.
        client: The client that waits.
        seconds: The longest time to wait.
        seen: The generation's version when it was last read, so that no change in between is
            missed.

    Raises:
        ClientDisconnectedError: As soon as the client disconnects.
    """
    await _wait_for_callback(
        generation, lambda wake: generation.add_change_callback(wake, seen), client, seconds
    )


async def wait_until_finished(
    generation: Generation, client: WaitingClient, seconds: float | None = None
) -> None:
    """Wait until a generation is finished, or ``seconds`` have passed.

    Raises:
        ClientDisconnectedError: As soon as the client disconnects.
    """
    await _wait_for_callback(generation, generation.add_done_callback, client, seconds)


async def wait_for_result(
    request: Request, queue: Queue, generation: Generation, grace: float | None = 0
) -> None:
    """Wait until a generation is finished or cancelled; cancel it if its client disconnects.

    Args:
        request: The client's request.
        queue: The queue that holds the generation.
        generation: The generation.
        grace: Seconds between the disconnect and the cancellation, in which another client may
            read the generation. None is the queue's own default (``QueueLimits.grace``).

    Raises:
        ApiError: If drawing fails.
        ClientDisconnectedError: If the client disconnects.
    """
    with queue.reading(generation, grace):
        async with watch_client(request) as client:
            await wait_until_finished(generation, client)
    if failed := generation_error(generation):
        raise failed


async def wait_for_images(
    request: Request, queue: Queue, generation: Generation, grace: float | None = 0
) -> None:
    """Wait for all images of a generation, as ``wait_for_result`` does.

    Raises:
        ApiError: If drawing fails, or the generation is cancelled by another request.
        ClientDisconnectedError: If the client disconnects.
    """
    await wait_for_result(request, queue, generation, grace)
    if incomplete := incomplete_error(generation):
        raise incomplete
