"""Threads, a few for each kind of work, so that none can keep another waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from scanline.service.http.errors import ApiError
from scanline.service.http.waiting import ClientGoneError

T = TypeVar("T")


class Pool:
    """So many threads for one kind of work; who comes first is served first.

    ``waiting`` pieces of work may wait, or any number. Long work comes in pieces: between two of
    them others get their turn, and nothing more is done for a client that has left.
    """

    def __init__(self, threads: int, waiting: int | None = None) -> None:
        self._turns = anyio.CapacityLimiter(threads)
        self.waiting = waiting

    @property
    def queued(self) -> int:
        """How many pieces of work wait now."""
        return self._turns.statistics().tasks_waiting

    async def run(self, gone: asyncio.Task[Any], work: Callable[..., T], *arguments: object) -> T:
        """Do a piece of work in a thread, in its turn, while ``gone`` is not done.

        Raises ``ApiError`` (429) where too many wait, ``ClientGoneError`` if the client has left
        before its turn.
        """
        if self.waiting is not None and self.queued >= self.waiting:
            raise ApiError(
                429, "too many pictures are being worked on; try again in a second",
                code="queue_full", headers={"Retry-After": "1"},
            )  # fmt: skip

        def unless_gone() -> T:
            if gone.done():
                raise ClientGoneError
            return work(*arguments)

        return await to_thread.run_sync(unless_gone, limiter=self._turns)
