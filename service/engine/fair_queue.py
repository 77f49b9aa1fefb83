"""Round-robin queue of waiting images, fair between callers."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import Image
from scanline.service.engine.time_share import is_small

SPARE_SCAN_LIMIT = 256  # waiting generations that are considered for spare slots


class Admission(NamedTuple):
    """An image to start, and whether it takes spare slots."""

    generation: Generation
    image: Image
    spare: bool


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """Limits on the images that are admitted between two steps.

    Attributes:
        free: Free slots that any image may take.
        spare: Free slots that only images of small requests may take.
        at_once: Slots to hand out in one admission. A single image may need more.
        prefill_pixels: Known pixels to prefill in one admission. A single image may have more.
        min_prefill: Least number of leading known pixels that are prefilled.
        largest_demand: Slots that the largest running request holds or waits for.
        prefill_small: Whether images of small requests may prefill now.
        prefill_large: Whether images of large requests may prefill now.
    """

    free: int
    spare: int = 0
    at_once: int = 64
    prefill_pixels: float = math.inf
    min_prefill: float = 1
    largest_demand: int = 0
    prefill_small: bool = True
    prefill_large: bool = True

    def pixels_to_prefill(self, spec: GenerationSpec) -> int:
        """Return the number of pixels to prefill per image."""
        return spec.prefill_pixels if spec.prefix >= self.min_prefill else 0


class FairQueue:
    """Generations with waiting images: callers in turn, and each caller's generations in turn.

    A caller with a thousand generations therefore delays another caller by one image per round.
    """

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[Generation, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._callers)

    def __contains__(self, generation: Generation) -> bool:
        return generation in self._callers.get(generation.caller, ())

    def __iter__(self) -> Iterator[Generation]:
        """Iterate over the generations, one of each caller in turn."""
        rounds = deque(iter(own) for own in self._callers.values())
        while rounds:
            own = rounds.popleft()
            if generation := next(own, None):
                yield generation
                rounds.append(own)

    def has_waiting(self, caller: str) -> bool:
        """Return True if the caller has waiting images."""
        return caller in self._callers

    def add(self, generation: Generation) -> None:
        """Add a generation behind the caller's other generations."""
        self._callers.setdefault(generation.caller, OrderedDict())[generation] = None

    def peek(self) -> Generation:
        """Return the generation whose image is next. The queue must not be empty."""
        return next(iter(next(iter(self._callers.values()))))

    def rotate(self, generation: Generation) -> None:
        """Move a generation and its caller to the end, after one of its images was taken.

        A generation without waiting images is removed.
        """
        self._callers.move_to_end(generation.caller)
        if generation.waiting:
            self._callers[generation.caller].move_to_end(generation)
        else:
            self.remove(generation)

    def admit(self, limits: AdmissionLimits) -> list[Admission]:
        """Take the next images within ``limits``.

        1. Free slots go to the images at the head of the queue, in order. If the next image needs
           more slots than are free, all images behind it wait too. Otherwise images that need few
           slots would overtake it forever.
        2. Spare slots go to images of small requests, which may overtake a large request that waits
           for slots.

        An image with known pixels to prefill is admitted only while its group may prefill.
        """
        free, spare = limits.free, limits.spare
        at_once, prefill_pixels = limits.at_once, limits.prefill_pixels
        admitted: list[Admission] = []

        def fits(spec: GenerationSpec) -> bool:
            # The first image is admitted even if it alone exceeds a limit.
            if not admitted:
                return True
            return (
                spec.slots_per_image <= at_once and limits.pixels_to_prefill(spec) <= prefill_pixels
            )

        def may_prefill(generation: Generation, largest_demand: int) -> bool:
            small = is_small(generation, largest_demand)
            allowed = limits.prefill_small if small else limits.prefill_large
            return allowed or not limits.pixels_to_prefill(generation.spec)

        def admit_next(generation: Generation, *, spare: bool) -> None:
            nonlocal at_once, prefill_pixels
            at_once -= generation.spec.slots_per_image
            prefill_pixels = max(prefill_pixels - limits.pixels_to_prefill(generation.spec), 0)
            image = generation.images[generation.next_index]
            generation.next_index += 1
            self.rotate(generation)
            admitted.append(Admission(generation, image, spare))

        largest = limits.largest_demand
        while self:
            generation = self.peek()
            slots = generation.spec.slots_per_image
            if slots > free or not fits(generation.spec) or not may_prefill(generation, largest):
                break
            free -= slots
            admit_next(generation, spare=False)
        if self and spare:
            largest = max(largest, self.peek().slot_demand)
            for generation in tuple(islice(self, SPARE_SCAN_LIMIT)):
                slots = generation.spec.slots_per_image
                small = is_small(generation, largest)
                if not small or slots > spare or not may_prefill(generation, largest):
                    continue
                if not fits(generation.spec):
                    break
                spare -= slots
                admit_next(generation, spare=True)
        return admitted

    def remove(self, generation: Generation) -> None:
        """Remove a generation, even if it has waiting images."""
        own = self._callers[generation.caller]
        del own[generation]
        if not own:
            del self._callers[generation.caller]

    def images_before(self, caller: str) -> int:
        """Return the number of images ahead of a new generation's first image."""
        rounds = len(self._callers.get(caller, ()))  # the caller's own generations come first
        before, earlier = 0, True
        for other, own in self._callers.items():
            earlier = earlier and other != caller  # whether it comes before the caller in a round
            images = rounds + earlier
            before += images if len(own) >= images else min(sum(g.waiting for g in own), images)
        return before

    def iter_images(self) -> Iterator[Generation]:
        """Iterate over the waiting images in their order, as the generation of each."""
        rounds = deque(deque((g, g.waiting) for g in own) for own in self._callers.values())
        while rounds:
            own = rounds.popleft()
            generation, left = own.popleft()
            yield generation
            if left > 1:
                own.append((generation, left - 1))
            if own:
                rounds.append(own)
