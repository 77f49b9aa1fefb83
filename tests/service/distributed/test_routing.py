"""How many images each replica has been given, whatever becomes of a request on its way."""

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


def test_images_are_counted_until_they_are_drawn_or_given_to_another() -> None:
    from scanline.service.distributed.routing import FewestImagesRouter

    router: Any = FewestImagesRouter.__new__(FewestImagesRouter)
    router.initialize_state()

    async def go_through() -> None:
        first, second = request("first", 3), request("second", 2)
        assert await router.choose_replicas([ONE, OTHER], first) == [[ONE]]
        assert await router.choose_replicas([ONE, OTHER], second) == [[OTHER]]
        assert await router.choose_replicas([OTHER], first) == [[OTHER]]  # one refused it
        router.on_request_completed("one", "first")  # of which it tells late
        assert router._images == {"other": 5}
        router.on_request_completed("other", "second")
        assert router._images == {"other": 3}
        first.future.cancel()  # and what is cancelled on its way is never told of
        await asyncio.sleep(0)
        assert router._images == {}

    asyncio.run(go_through())


def test_what_a_lost_replica_does_not_take_goes_to_every_other_first() -> None:
    """It would have the fewest images for ever."""
    from scanline.service.distributed.routing import FewestImagesRouter

    router: Any = FewestImagesRouter.__new__(FewestImagesRouter)
    router.initialize_state()
    third = SimpleNamespace(replica_id="third")

    async def go_through() -> None:
        assert await router.choose_replicas([third], request("before", 9)) == [[third]]
        part, order = request("part", 2), []
        for _ in range(5):
            ((chosen,),) = await router.choose_replicas([ONE, OTHER, third], part)
            order.append(chosen)
            assert router._images == Counter(third=9) + Counter({chosen.replica_id: 2})
        assert order == [ONE, OTHER, third, ONE, OTHER]
        assert await router.choose_replicas([ONE, OTHER, third]) == [[ONE]]

    asyncio.run(go_through())
