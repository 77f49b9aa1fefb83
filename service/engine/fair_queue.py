"""In what order waiting images are taken: callers in turn, and a caller's generations in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from scanline.service.engine.generation import Generation, Image
from scanline.service.engine.time_share import LIGHT_RATIO

SPARE_SCAN_LIMIT = 256  # generations that wait, when spare slots are given


class Admission(NamedTuple):
    """An image that is to run, in spare slots or not."""

    generation: Generation
    image: Image
    spare: bool


class FairQueue:
    """The generations with images not yet taken.

    A caller with a thousand of them so delays another one by a single image each time.
    """

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[Generation, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._callers)

    def __contains__(self, generation: Generation) -> bool:
        return generation in self._callers.get(generation.caller, ())

    def __iter__(self) -> Iterator[Generation]:
        """Give each once, one of each caller in turn."""
        turns = deque(iter(own) for own in self._callers.values())
        while turns:
            own = turns.popleft()
            if generation := next(own, None):
                yield generation
                turns.append(own)

    def has_waiting(self, caller: str) -> bool:
        """Whether a caller has images not yet taken."""
        return caller in self._callers

    def add(self, generation: Generation) -> None:
        """Put a new one behind its caller's others."""
        self._callers.setdefault(generation.caller, OrderedDict())[generation] = None

    def peek(self) -> Generation:
        """Give the one whose image is next; there must be one."""
        return next(iter(next(iter(self._callers.values()))))

    def rotate(self, generation: Generation) -> None:
        """Count an image of it as taken: others are next, and it is out if that was its last."""
        self._callers.move_to_end(generation.caller)
        if generation.waiting:
            self._callers[generation.caller].move_to_end(generation)
        else:
            self.remove(generation)

    def choose(
        self, *, free: int, most: int, spare: int, largest_demand: int, known: float, light: bool,
        heavy: bool,
    ) -> list[Admission]:  # fmt: skip
        """Take images for the ``free`` slots, in their order.

        Together they need no more than ``most`` and prefill no more than ``known`` pixels, unless
        one alone does. One that needs more than are free waits for them, and the others behind it:
        else those that need few would always be first. But ``spare`` slots are there for those
        whose generation is light beside the ``heaviest`` that is drawn, or beside the next. An
        image that has known pixels to prefill is taken in its group's turn alone, the ``light``
        ones' or the ``heavy`` ones'.
        """
        taken: list[Admission] = []
        while self:
            generation = self.peek()
            slots, prefilled = generation.spec.slots, generation.spec.prefill_pixels
            if slots > free or (taken and (slots > most or prefilled > known)):
                break
            if prefilled and not (
                heavy if generation.request_slots * LIGHT_RATIO > largest_demand else light
            ):
                break
            free, most, known = free - slots, most - slots, max(known - prefilled, 0)
            taken.append(self._next_of(generation, spare=False))
        if self:
            largest_demand = max(largest_demand, self.peek().slot_demand)
        for generation in tuple(islice(self, SPARE_SCAN_LIMIT)) if spare else ():
            slots, prefilled = generation.spec.slots, generation.spec.prefill_pixels
            if (
                generation.request_slots * LIGHT_RATIO > largest_demand
                or slots > spare
                or (prefilled and not light)
            ):
                continue
            if taken and (slots > most or prefilled > known):
                break
            spare, most, known = spare - slots, most - slots, max(known - prefilled, 0)
            taken.append(self._next_of(generation, spare=True))
        return taken

    def _next_of(self, generation: Generation, *, spare: bool) -> Admission:
        image = generation.images[generation.next_index]
        generation.next_index += 1
        self.rotate(generation)
        return Admission(generation, image, spare)

    def remove(self, generation: Generation) -> None:
        """Leave one out whatever it has left."""
        own = self._callers[generation.caller]
        del own[generation]
        if not own:
            del self._callers[generation.caller]

    def transfer(self, generation: Generation, caller: str) -> None:
        """Let it have the turns of another who wants it, if they have nothing waiting.

        One that is its caller's next stays, or two others could move it to the end for ever.
        """
        if generation not in self or self.has_waiting(caller):
            return
        if next(iter(self._callers[generation.caller])) is not generation:
            self.remove(generation)
            generation.caller = caller
            self.add(generation)

    def images_before(self, caller: str) -> int:
        """Count the images that come before the first of a caller's next generation."""
        rounds = len(self._callers.get(caller, ()))  # its own come first
        before, counted = 0, True
        for one, own in self._callers.items():
            counted = counted and one != caller  # whether this one's turn comes before the caller's
            most = rounds + counted
            before += most if len(own) >= most else min(sum(g.waiting for g in own), most)
        return before

    def iter_images(self) -> Iterator[Generation]:
        """Give the generation of each image in the order in which they are taken."""
        turns = deque(deque((g, g.waiting) for g in own) for own in self._callers.values())
        while turns:
            own = turns.popleft()
            generation, left = own.popleft()
            yield generation
            if left > 1:
                own.append((generation, left - 1))
            if own:
                turns.append(own)
