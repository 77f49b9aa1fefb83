"""Which images run, whose they are, and which slots they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.particles import ParticleFilter
from scanline.service.engine.fair_queue import Admission
from scanline.service.engine.generation import Generation, Image
from scanline.service.engine.time_share import LIGHT_RATIO


class RunningImage(NamedTuple):
    """An image that runs: its slots, the first of which leads, and their twins."""

    generation: Generation
    image: Image
    slots: list[int]
    twins: list[int]
    particles: ParticleFilter | None
    spare: bool


class StepBatch(NamedTuple):
    """Slots that go on together: of images by themselves, and of particles.

    ``room`` is how many pixels the particles may draw before they are weighed.
    """

    alone: NDArray[np.int32]
    particles: NDArray[np.int32]
    room: int


class SlotAllocator:
    """The images that run, each by the slot that leads it, and the slots that are free.

    ``spare`` of these are for small requests alone. ``leads`` has the leads of each generation's
    images, ``owners`` the generation of each; ``crowds`` counts images of several particles.
    """

    def __init__(self, config: ModelConfig, slots: int, spare: int) -> None:
        self._config = config
        self.free = list(range(slots - 1, -1, -1))  # the next one last
        self.spare = spare
        self.by_lead: dict[int, RunningImage] = {}
        self.leads: dict[Generation, set[int]] = {}
        self.owners = np.empty(slots, object)
        self.particle_images = 0

    def __len__(self) -> int:
        return len(self.by_lead)

    def add(self, taken: Admission) -> RunningImage:
        """Give an image its slots; where that fails it has none."""
        generation, image, spare = taken
        spec = generation.spec
        both = self.free[: -spec.slots - 1 : -1]
        slots, twins = both[: spec.particles], both[spec.particles :]
        particles = None
        if spec.particles > 1:
            known = np.zeros(self._config.pixels, np.bool_) if spec.known is None else spec.known
            particles = ParticleFilter(self._config, image.seed, known, slots, twins or None)
        run = RunningImage(generation, image, slots, twins, particles, spare)
        lead = slots[0]
        del self.free[-spec.slots :]
        self.spare -= spec.slots if spare else 0
        self.by_lead[lead] = run
        self.owners[lead] = generation
        self.particle_images += particles is not None
        self.leads.setdefault(generation, set()).add(lead)
        return run

    def remove(self, lead: int) -> None:
        """Take an image's slots back."""
        run = self.by_lead.pop(lead)
        self.owners[lead] = None
        self.particle_images -= run.particles is not None
        self.free += reversed(run.slots + run.twins)
        self.spare += run.generation.spec.slots if run.spare else 0
        self.leads[run.generation].remove(lead)
        if not self.leads[run.generation]:
            del self.leads[run.generation]

    @property
    def largest_demand(self) -> int:
        """Count the slots that the largest generation has or wants."""
        return max((generation.slot_demand for generation in self.leads), default=0)

    @property
    def light(self) -> set[Generation]:
        """Give the generations that want few slots beside the heaviest."""
        largest_demand = self.largest_demand
        return {
            generation
            for generation in self.leads
            if generation.request_slots * LIGHT_RATIO <= largest_demand
        }

    @property
    def groups(self) -> tuple[set[Generation], set[Generation]]:
        """Give the light generations, and the others."""
        light = self.light
        return light, self.leads.keys() - light

    def next_batch(self, group: set[Generation], positions: NDArray[np.int32]) -> StepBatch:
        """Give the slots of a group's images that have pixels to go.

        ``positions`` are where images will be once all that was launched has landed.
        """
        # Thousands of images may run, and a device waits for this: no work on each of them.
        alone = np.fromiter(self.by_lead, np.int32, len(self))
        if len(group) < len(self.leads):
            alone = alone[[owner in group for owner in self.owners[alone].tolist()]]
        alone = alone[positions[alone] < self._config.pixels]  # the others are complete by then
        crowd, room = list[int](), self._config.pixels
        if self.particle_images:
            runs = [self.by_lead[lead] for lead in alone.tolist()]
            alone = np.array([run.slots[0] for run in runs if run.particles is None], np.int32)
            for run in runs:
                if run.particles is not None:
                    crowd += run.slots
                    room = min(
                        room,
                        max(1, run.particles.pixels_to_next_update(int(positions[run.slots[0]]))),
                    )
        return StepBatch(alone, np.array(crowd, np.int32), room)
