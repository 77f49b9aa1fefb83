"""Tests of the fair thread pool: queue limit, turns and disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.errors import ApiError
from scanline.service.http.thread_pool import FairThreadPool
from tests.service.fixtures import DEADLINE, until


@contextlib.asynccontextmanager
async def clients(*callers: str) -> AsyncIterator[list[WaitingClient]]:
    """Yield a client of each caller; none of them disconnects."""
    gone = asyncio.create_task(asyncio.sleep(3600))
    try:
        yield [WaitingClient(caller, gone) for caller in callers]
    finally:
        gone.cancel()


def test_the_queue_is_limited_and_reserves_room_for_new_callers() -> None:
    go_on, pool = threading.Event(), FairThreadPool(2, 8, "full")

    async def ask() -> None:
        async with clients("many", "another") as (many, another):
            asked = [asyncio.create_task(pool.run(many, go_on.wait, 60)) for _ in range(9)]
            await asyncio.to_thread(until, lambda: pool.queued == 7)
            with pytest.raises(ApiError, match="too much work"):
                await pool.run(many, go_on.wait, 1)
            asked.append(asyncio.create_task(pool.run(another, go_on.wait, 60)))
            await asyncio.to_thread(until, lambda: pool.queued == 8)
            for client in (many, another):
                with pytest.raises(ApiError, match="too much work") as refused:
                    await pool.run(client, go_on.wait, 1)
                assert (refused.value.code, refused.value.headers) == ("full", {"Retry-After": "1"})
            pool._task_seconds = 5.0
            with pytest.raises(ApiError, match="try again in 20 s") as refused:
                await pool.run(many, go_on.wait, 1)
            assert refused.value.headers == {"Retry-After": "20"}
            go_on.set()
            assert await asyncio.gather(*asked) == [True] * 10
            assert pool.queued == 0
            assert 0 < pool._task_seconds < 60

    asyncio.run(ask())


def test_callers_take_turns() -> None:
    go_on, pool = threading.Event(), FairThreadPool(1)
    done: list[str] = []

    def work(name: str) -> None:
        assert go_on.wait(DEADLINE)
        done.append(name)

    async def ask() -> None:
        async with clients("a", "b") as (a, b):
            pieces = [(a, "a0"), (a, "a1"), (a, "a2"), (a, "a3"), (b, "b0"), (b, "b1")]
            asked = []
            for client, name in pieces:
                asked.append(asyncio.create_task(pool.run(client, work, name)))
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(*asked)

    asyncio.run(ask())
    assert done == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_a_disconnected_client_does_not_block_the_pool() -> None:
    """It may disconnect before its turn, at its turn, or while its task runs."""
    go_on, pool = threading.Event(), FairThreadPool(1)

    async def ask() -> None:
        async with clients("a", "b") as (a, b):
            asked = [asyncio.create_task(pool.run(one, go_on.wait, 60)) for one in (a, a, b, b)]
            await asyncio.to_thread(until, lambda: pool.queued == 3)
            asked[1].cancel()
            await asyncio.wait(asked[1:2])
            assert pool.queued == 2
            hand_over = pool._hand_over

            def hand_over_to_a_cancelled_task() -> None:
                pool._hand_over = hand_over  # type: ignore[method-assign]
                hand_over()
                asked[2].cancel()  # its turn was granted, but its task has not run yet

            pool._hand_over = hand_over_to_a_cancelled_task  # type: ignore[method-assign]
            asked[0].cancel()  # its task is running
            go_on.set()
            assert await asyncio.wait_for(asked[3], DEADLINE)
            assert [one.cancelled() for one in asked] == [True, True, True, False]
            assert await asyncio.wait_for(pool.run(a, go_on.wait, 1), DEADLINE)
            assert pool.queued == 0

    asyncio.run(ask())


def test_a_turn_granted_to_a_cancelled_task_is_handed_over() -> None:
    """The task is cancelled, but has not left the queue yet."""
    go_on, pool = threading.Event(), FairThreadPool(1)

    async def ask() -> None:
        async with clients("a") as (a,):
            asked = [asyncio.create_task(pool.run(a, go_on.wait, 60)) for _ in range(3)]
            await asyncio.to_thread(until, lambda: pool.queued == 2)
            hand_over = pool._hand_over

            def cancel_and_hand_over() -> None:
                pool._hand_over = hand_over  # type: ignore[method-assign]
                asked[1].cancel()
                hand_over()

            pool._hand_over = cancel_and_hand_over  # type: ignore[method-assign]
            go_on.set()
            assert await asyncio.wait_for(asked[2], DEADLINE)
            assert await asked[0]
            assert asked[1].cancelled()
            assert (pool.queued, pool._free) == (0, 1)

    asyncio.run(ask())
