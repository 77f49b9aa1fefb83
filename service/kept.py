"""Finished generations, kept a while for replay: so many images, and a crowd pushes out its own."""

from __future__ import annotations

from collections import Counter, OrderedDict

from scanline.service.generation import Generation

SHARE = 4  # a caller who keeps more than one place in so many pushes out their own, not others'


class Kept:
    """The last to finish: ``most`` images of them, each generation for ``seconds``.

    The very last is kept though it alone has more, unless ``most`` is 0. From one thread at a
    time: the queue's lock guards it.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._all: OrderedDict[str, Generation] = OrderedDict()  # the longest finished first,
        self._of: dict[str, OrderedDict[str, Generation]] = {}  # as of each caller
        self._images: Counter[str] = Counter()  # by caller
        self._count = 0

    def find(self, identifier: str, now: float) -> Generation | None:
        """Give one that is still kept."""
        self._forget_old(now)
        return self._all.get(identifier)

    def add(self, generation: Generation, now: float) -> None:
        """Keep one that has finished, in the place of older ones where there is no other."""
        self._forget_old(now)
        self._all[generation.id] = generation
        self._of.setdefault(generation.caller, OrderedDict())[generation.id] = generation
        self._images[generation.caller] += generation.spec.n
        self._count += generation.spec.n
        while self._count > self._most and (len(self._all) > 1 or not self._most):
            self._drop(self._making_room(generation.caller))

    def _making_room(self, caller: str) -> Generation:
        """Choose what goes for one that this caller's last has pushed in."""
        own = self._of[caller]
        crowds = self._images[caller] * SHARE > self._most and len(own) > 1
        return next(iter((own if crowds else self._all).values()))

    def _forget_old(self, now: float) -> None:
        while self._all:
            first = next(iter(self._all.values()))
            assert first.ended is not None
            if now - first.ended <= self._seconds:
                return
            self._drop(first)

    def _drop(self, generation: Generation) -> None:
        own = self._of[generation.caller]
        del self._all[generation.id], own[generation.id]
        self._images[generation.caller] -= generation.spec.n
        self._count -= generation.spec.n
        if not own:
            del self._of[generation.caller], self._images[generation.caller]
