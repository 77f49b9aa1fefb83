"""The router counts each replica's images, also if requests fail or are cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from scanline.service.distributed.messages import WorkItem
from scanline.service.engine.generation import GenerationSpec

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install -e '.[cluster]'")

ONE, OTHER = (SimpleNamespace(replica_id=name) for name in ("one", "other"))


def request(name: str, n: int) -> Any:
    return SimpleNamespace(
        args=[WorkItem(GenerationSpec(n=n, seed=0), [], "", n)],
        metadata=SimpleNamespace(internal_request_id=name),
        future=asyncio.get_running_loop().create_future(),
    )


def test_images_count_for_a_replica_until_drawn_or_routed_again() -> None:
    from scanline.service.distributed.routing import FewestImagesRouter

    router: Any = FewestImagesRouter.__new__(FewestImagesRouter)
    router.initialize_state()

    async def run() -> None:
        first, second = request("first", 3), request("second", 2)
        assert await router.choose_replicas([ONE, OTHER], first) == [[ONE]]
        assert await router.choose_replicas([ONE, OTHER], second) == [[OTHER]]
        # The first replica refused it.
        assert await router.choose_replicas([OTHER], first) == [[OTHER]]
        router.on_request_completed("one", "first")  # and reports its completion late
        assert router._images == {"other": 5}
        router.on_request_completed("other", "second")
        assert router._images == {"other": 3}
        first.future.cancel()  # a request that is cancelled before it is sent never completes
        await asyncio.sleep(0)
        assert router._images == {}

    asyncio.run(run())


def test_a_request_that_a_replica_did_not_accept_goes_to_all_others_first() -> None:
    """Otherwise the lost replica, with the fewest images, would be chosen forever."""
    from scanline.service.distributed.routing import FewestImagesRouter

    router: Any = FewestImagesRouter.__new__(FewestImagesRouter)
    router.initialize_state()
    third = SimpleNamespace(replica_id="third")

    async def run() -> None:
        assert await router.choose_replicas([third], request("before", 9)) == [[third]]
        item, order = request("item", 2), []
        for _ in range(5):
            ((chosen,),) = await router.choose_replicas([ONE, OTHER, third], item)
            order.append(chosen)
            assert router._images == Counter(third=9) + Counter({chosen.replica_id: 2})
        assert order == [ONE, OTHER, third, ONE, OTHER]
        assert await router.choose_replicas([ONE, OTHER, third]) == [[ONE]]

    asyncio.run(run())
