"""Finished generations, kept a while for replay: so many images, and a crowd pushes out its own."""

from __future__ import annotations

from collections import Counter, OrderedDict

from scanline.service.engine.generation import Generation

CALLER_SHARE = (
    4  # a caller who keeps more than one place in so many pushes out their own, not others'
)


class ResultCache:
    """The last to finish: ``most`` images of them, each generation for ``seconds``.

    The very last is kept though it alone has more, unless ``most`` is 0. From one thread at a
    time: the queue's lock guards it.
    """

    def __init__(self, max_images: int, seconds: float) -> None:
        self._max_images, self._seconds = max_images, seconds
        self._all: OrderedDict[str, Generation] = OrderedDict()  # the longest finished first,
        self._by_caller: dict[str, OrderedDict[str, Generation]] = {}  # as of each caller
        self._images: Counter[str] = Counter()  # by caller
        self._count = 0

    def get(self, identifier: str, now: float) -> Generation | None:
        """Give one that is still kept."""
        self._evict_expired(now)
        return self._all.get(identifier)

    def add(self, generation: Generation, now: float) -> None:
        """Keep one that has finished, in the place of older ones where there is no other."""
        self._evict_expired(now)
        self._all[generation.id] = generation
        self._by_caller.setdefault(generation.caller, OrderedDict())[generation.id] = generation
        self._images[generation.caller] += generation.spec.n
        self._count += generation.spec.n
        while self._count > self._max_images and (len(self._all) > 1 or not self._max_images):
            self._evict(self._choose_evicted(generation.caller))

    def _choose_evicted(self, caller: str) -> Generation:
        """Choose what goes for one that this caller's last has pushed in."""
        own = self._by_caller[caller]
        crowds = self._images[caller] * CALLER_SHARE > self._max_images and len(own) > 1
        return next(iter((own if crowds else self._all).values()))

    def _evict_expired(self, now: float) -> None:
        while self._all:
            first = next(iter(self._all.values()))
            assert first.ended is not None
            if now - first.ended <= self._seconds:
                return
            self._evict(first)

    def _evict(self, generation: Generation) -> None:
        own = self._by_caller[generation.caller]
        del self._all[generation.id], own[generation.id]
        self._images[generation.caller] -= generation.spec.n
        self._count -= generation.spec.n
        if not own:
            del self._by_caller[generation.caller], self._images[generation.caller]
