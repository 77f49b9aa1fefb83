"""Thread pools whose callers take turns, so that one client's work cannot hold up the others'."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from fastapi import Request

from scanline.service.http.disconnect import ClientDisconnectedError, WaitingClient, watch_client
from scanline.service.http.errors import ApiError

T = TypeVar("T")

AVERAGED_TASKS = 8  # window of the moving average of a task's time
MAX_RETRY_AFTER = 120.0  # seconds
NEW_CALLER_RESERVE = 8  # 1/8 of the queue is kept for callers with no task queued


class FairThreadPool:
    """Threads for one kind of work, shared fairly between callers (round robin).

    Long work is split into tasks: other callers get their turn between two of them, and no further
    task runs for a client that has disconnected.

    Args:
        threads: Number of threads.
        max_queued: Number of tasks that may wait, or None for any number.
        code: Error code of the 429 reply if too many wait.
        span: Function that returns a context in which each task runs, for traces.
    """

    def __init__(
        self,
        threads: int,
        max_queued: int | None = None,
        code: str = "queue_full",
        span: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._span = span
        self._threads = anyio.CapacityLimiter(threads)
        self._free = threads
        self.max_queued, self._code = max_queued, code
        self._task_seconds = 0.0  # moving average
        self.queued = 0  # tasks that wait now
        # Waiting tasks of each caller in order, in dicts so that any task can be removed at once.
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    async def run(self, client: WaitingClient, task: Callable[..., T], *arguments: Any) -> T:
        """Run a client's task in a thread when it is the client's turn.

        Raises:
            ApiError: 429 if too many tasks wait.
            ClientDisconnectedError: If the client disconnected before its turn.
        """
        self._check_capacity(client.caller)
        async with self._turn(client.caller):
            if client.gone.done():
                raise ClientDisconnectedError
            began = time.perf_counter()
            try:
                with self._span():
                    return await to_thread.run_sync(task, *arguments, limiter=self._threads)
            finally:
                seconds, average = time.perf_counter() - began, self._task_seconds
                self._task_seconds += (seconds - average) / AVERAGED_TASKS if average else seconds

    async def run_for(self, request: Request, task: Callable[..., T], *arguments: Any) -> T:
        """Run a task for a request's client, whose body must have been read; see ``run``."""
        async with watch_client(request) as client:
            return await self.run(client, task, *arguments)

    def _check_capacity(self, caller: str) -> None:
        if self.max_queued is None or self._free:
            return
        limit = self.max_queued
        if caller in self._waiting:  # leave room for callers with no task queued
            limit -= limit // NEW_CALLER_RESERVE
        if self.queued >= limit:
            # The time until all waiting tasks have run, because other refused clients retry too.
            wait = self.queued * self._task_seconds / self._threads.total_tokens
            seconds = math.ceil(min(max(wait, 1.0), MAX_RETRY_AFTER))
            raise ApiError(
                429, f"too much work is waiting; try again in {seconds} s",
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
            self._hand_over()

    async def _wait(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, {})[turn] = None
        self.queued += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(caller, turn)
            else:  # the turn arrived at the same moment
                self._hand_over()
            raise

    def _hand_over(self) -> None:
        """Pass the free thread to the caller that has waited longest for one."""
        while self._waiting:
            caller, turns = next(iter(self._waiting.items()))
            turn = next(iter(turns))
            self._waiting.move_to_end(caller)
            self._remove(caller, turn)
            # Skip a cancelled turn, whose task has not run since.
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1

    def _remove(self, caller: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(caller, {})
        if turn not in turns:
            return
        del turns[turn]
        self.queued -= 1
        if not turns:
            del self._waiting[caller]
