"""Threads, a few for each kind of work, so that none can keep another waiting."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from scanline.service.engine.queue import MAX_RETRY_AFTER, NEW_CALLER_RESERVE
from scanline.service.http.errors import ApiError
from scanline.service.http.waiting import ClientDisconnectedError, WaitingClient

T = TypeVar("T")

RECENT = 8  # pieces of work, by which what one takes follows


class FairThreadPool:
    """So many threads for one kind of work; callers take turns, each with its first piece.

    ``waiting`` pieces of work may wait, or any number, and an error of this ``code`` says that too
    many do. Long work comes in pieces: between two of them others get their turn, and nothing more
    is done for a client that has left.
    """

    def __init__(
        self, threads: int, max_queued: int | None = None, code: str = "queue_full"
    ) -> None:
        self._threads = anyio.CapacityLimiter(threads)
        self._free = threads
        self.max_queued, self._code = max_queued, code
        self._seconds = 0.0  # that a piece takes, as of late
        self.queued = 0  # pieces of work that wait now
        # Each caller's, in their order; a dict, so that any that leaves does so at once.
        self._turns: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    async def run(self, client: WaitingClient, work: Callable[..., T], *arguments: Any) -> T:
        """Do a piece of a client's work in a thread, in its turn.

        Raises ``ApiError`` (429) where too many wait, ``ClientDisconnectedError`` if the client
        has left
        before its turn.
        """
        self._check_room(client.caller)
        async with self._turn(client.caller):
            if client.gone.done():
                raise ClientDisconnectedError
            began = time.perf_counter()
            try:
                return await to_thread.run_sync(work, *arguments, limiter=self._threads)
            finally:
                seconds = time.perf_counter() - began
                self._seconds += (seconds - self._seconds) / RECENT if self._seconds else seconds

    def _check_room(self, caller: str) -> None:
        if self.max_queued is None or self._free:
            return
        most = self.max_queued
        if caller in self._turns:  # as where images wait: one alone would shut the others out
            most -= most // NEW_CALLER_RESERVE
        if self.queued >= most:
            # Until all that wait now have had their turn: whoever else is refused comes again, too.
            turns = self.queued * self._seconds / self._threads.total_tokens
            seconds = math.ceil(min(max(turns, 1.0), MAX_RETRY_AFTER))
            raise ApiError(
                429, f"too many pictures are being worked on; try again in {seconds} s",
                code=self._code, headers={"Retry-After": str(seconds)},
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _turn(self, caller: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.setdefault(caller, {})[turn] = None
        self.queued += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(caller, turn)
            else:  # it came at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the caller who has waited for one the longest."""
        while self._turns:
            caller, own = next(iter(self._turns.items()))
            turn = next(iter(own))
            self._turns.move_to_end(caller)
            self._leave(caller, turn)
            if not turn.cancelled():  # which its task is about to see
                turn.set_result(None)
                return
        self._free += 1

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        own = self._turns.get(caller, {})
        if turn not in own:
            return
        del own[turn]
        self.queued -= 1
        if not own:
            del self._turns[caller]
