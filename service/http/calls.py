"""What routes share: the server, the model, room in its queue, and the client that waits."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from scanline.model.config import ModelConfig
from scanline.service import generation as work
from scanline.service.engine import Engine
from scanline.service.generation import Generation
from scanline.service.http.errors import ApiError
from scanline.service.http.events import wait_finished
from scanline.service.queue import ClosedError, QueueFullError
from scanline.service.server import Scanline, Served

# For the documentation alone: KeyMiddleware has checked the key before any body was read.
bearer = HTTPBearer(auto_error=False, description="Only where the server has an API key set.")


async def _scanline(request: Request) -> Scanline:
    scanline: Scanline = request.app.state.scanline
    return scanline


Server = Annotated[Scanline, Depends(_scanline)]


def find_served(server: Scanline, name: str | None) -> Served:
    """Find a model by name, the first for None; 404 where there is none, 503 while loading."""
    if not server.models:
        raise ApiError(503, "the models are still loading; try again in a moment", code="not_ready")
    if name is None:
        return next(iter(server.models.values()))
    if name not in server.models:
        there = ", ".join(server.models)
        raise ApiError(
            404, f"there is no model {name!r} here; there are: {there}",
            param="model", code="model_not_found",
        )  # fmt: skip
    return server.models[name]


def find_engine(server: Scanline, name: str | None, n: int) -> Engine:
    """Find the model's engine, and refuse early what it has no room for."""
    engine = find_served(server, name).engine
    if n > (most := server.settings.max_images):
        raise ApiError(400, f"n: at most {most} images a request", param="n", code="too_many")
    with queue_errors():
        engine.queue.check_room(n)
    return engine


@contextlib.contextmanager
def queue_errors() -> Iterator[None]:
    """Turn the engine's refusals into 429 and 503 that say when to try again."""
    try:
        yield
    except QueueFullError as error:
        headers = {"Retry-After": str(error.retry_after)}
        raise ApiError(429, str(error), code="queue_full", headers=headers) from None
    except ClosedError as error:
        raise ApiError(503, str(error), code="closing", headers={"Retry-After": "1"}) from None


def choose_seed(seed: int | None) -> int:
    """Take the caller's seed, or a random one."""
    # Below 2³², so that a random seed is short and exact in JavaScript too.
    return secrets.randbelow(2**32) if seed is None else seed


def find_label(config: ModelConfig, label: int | str | None) -> int:
    """Find a class by name or number, -1 for none; 400 where the model has no such class."""
    try:
        return config.class_number(label)
    except ValueError as error:
        raise ApiError(400, str(error), param="label", code="unknown_class") from None


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def client_of(request: Request) -> AsyncIterator[asyncio.Task[None]]:
    """Watch the client inside the block, its body read: yields a task that ends when it leaves."""
    gone = asyncio.create_task(_client_gone(request))
    try:
        yield gone
    finally:
        gone.cancel()


async def draw_to_end(request: Request, engine: Engine, wanted: work.Request) -> Generation:
    """Draw what is wanted for a client that waits for all of it.

    Raises ``ApiError`` where there is no room or drawing fails, ``ClientGoneError`` if the client
    leaves.
    """
    with queue_errors():
        generation = engine.queue.submit(wanted)
    # Nobody can come back for the reply: if its reader leaves, so does the generation.
    with engine.queue.reading(generation, grace=0):
        async with client_of(request) as gone:
            await wait_finished(generation, gone)
    if generation.error:
        status = 500 if engine.alive else 503
        raise ApiError(status, generation.error, code="generation_failed")
    return generation
