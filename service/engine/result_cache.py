"""Cache of finished generations, bounded by images and age, and fair between callers."""

from __future__ import annotations

from collections import Counter, OrderedDict

from scanline.service.engine.generation import Generation

# A caller whose images fill more than this fraction (1 / CALLER_SHARE) of the cache evicts its own
# generations instead of other callers'.
CALLER_SHARE = 4


class ResultCache:
    """The most recently finished generations. Not thread-safe: the queue's lock guards it.

    Args:
        max_images: Number of images to keep. The last generation is kept even if it alone has more,
            unless ``max_images`` is 0.
        seconds: How long a generation is kept.
    """

    def __init__(self, max_images: int, seconds: float) -> None:
        self._max_images, self._seconds = max_images, seconds
        # Both dicts are in order of finishing, the oldest first.
        self._all: OrderedDict[str, Generation] = OrderedDict()
        self._by_caller: dict[str, OrderedDict[str, Generation]] = {}
        self._images: Counter[str] = Counter()  # by caller
        self._count = 0

    def get(self, identifier: str, now: float) -> Generation | None:
        """Return a cached generation, or None."""
        self._evict_expired(now)
        return self._all.get(identifier)

    def add(self, generation: Generation, now: float) -> None:
        """Add a finished generation, and evict older ones if the cache is full."""
        self._evict_expired(now)
        self._all[generation.id] = generation
        self._by_caller.setdefault(generation.caller, OrderedDict())[generation.id] = generation
        self._images[generation.caller] += generation.spec.n
        self._count += generation.spec.n
        while self._count > self._max_images and (len(self._all) > 1 or not self._max_images):
            self._evict(self._choose_evicted(generation.caller))

    def _choose_evicted(self, caller: str) -> Generation:
        """Choose the generation to evict after ``caller`` added one."""
        own = self._by_caller[caller]
        over_share = self._images[caller] * CALLER_SHARE > self._max_images and len(own) > 1
        return next(iter((own if over_share else self._all).values()))

    def _evict_expired(self, now: float) -> None:
        while self._all:
            oldest = next(iter(self._all.values()))
            assert oldest.ended is not None
            if now - oldest.ended <= self._seconds:
                return
            self._evict(oldest)

    def _evict(self, generation: Generation) -> None:
        own = self._by_caller[generation.caller]
        del self._all[generation.id], own[generation.id]
        self._images[generation.caller] -= generation.spec.n
        self._count -= generation.spec.n
        if not own:
            del self._by_caller[generation.caller], self._images[generation.caller]
