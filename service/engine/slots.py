"""Allocation of decoder slots to running images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.particles import ParticleFilter
from scanline.service.engine.fair_queue import Admission
from scanline.service.engine.generation import Generation
from scanline.service.engine.image import Image
from scanline.service.engine.time_share import is_small


class RunningImage(NamedTuple):
    """A running image and its slots.

    Attributes:
        slots: One slot per particle; the first is the lead slot, which identifies the image.
        twins: Slots of the unconditional twins, if the image is guided.
        spare: Whether the slots are spare ones.
    """

    generation: Generation
    image: Image
    slots: list[int]
    twins: list[int]
    particles: ParticleFilter | None
    spare: bool


class StepBatch(NamedTuple):
    """Slots to advance in one step.

    Attributes:
        single: Slots of images without particles, int32.
        particles: Slots of particles, int32.
        max_particle_pixels: Pixels that the particles may draw before their weights are updated.
    """

    single: NDArray[np.int32]
    particles: NDArray[np.int32]
    max_particle_pixels: int


class SlotAllocator:
    """Running images by lead slot, and the free slots.

    Attributes:
        free: Free slots, the next one last.
        spare: How many of the free slots are kept for small requests.
        by_lead: Running images, by lead slot.
        leads: Lead slots of each generation's running images.
        owners: Generation of each lead slot.
        particle_images: Number of running images that have several particles.
    """

    def __init__(self, config: ModelConfig, slots: int, spare: int) -> None:
        self._config = config
        self.free = list(range(slots - 1, -1, -1))
        self.spare = spare
        self.by_lead: dict[int, RunningImage] = {}
        self.leads: dict[Generation, set[int]] = {}
        self.owners = np.empty(slots, object)
        self.particle_images = 0

    def __len__(self) -> int:
        return len(self.by_lead)

    def add(self, admission: Admission) -> RunningImage:
        """Allocate slots to an image. If this raises, nothing has changed."""
        generation, image, spare = admission
        spec = generation.spec
        both = self.free[: -spec.slots_per_image - 1 : -1]
        slots, twins = both[: spec.sampling.particles], both[spec.sampling.particles :]
        particles = None
        if spec.sampling.particles > 1:
            known = np.zeros(self._config.pixels, np.bool_) if spec.known is None else spec.known
            particles = ParticleFilter(self._config, image.seed, known, slots, twins or None)
        running = RunningImage(generation, image, slots, twins, particles, spare)
        lead = slots[0]
        del self.free[-spec.slots_per_image :]
        self.spare -= spec.slots_per_image if spare else 0
        self.by_lead[lead] = running
        self.owners[lead] = generation
        self.particle_images += particles is not None
        self.leads.setdefault(generation, set()).add(lead)
        return running

    def remove(self, lead: int) -> None:
        """Free an image's slots."""
        running = self.by_lead.pop(lead)
        generation = running.generation
        self.owners[lead] = None
        self.particle_images -= running.particles is not None
        self.free += reversed(running.slots + running.twins)
        self.spare += generation.spec.slots_per_image if running.spare else 0
        self.leads[generation].remove(lead)
        if not self.leads[generation]:
            del self.leads[generation]

    @property
    def largest_demand(self) -> int:
        """Number of slots that the largest running request holds or waits for."""
        return max((generation.slot_demand for generation in self.leads), default=0)

    @property
    def small(self) -> set[Generation]:
        """Running generations that are small compared with the largest one."""
        largest = self.largest_demand
        return {generation for generation in self.leads if is_small(generation, largest)}

    @property
    def groups(self) -> tuple[set[Generation], set[Generation]]:
        """Running generations: the small ones, and all others."""
        small = self.small
        return small, self.leads.keys() - small

    def next_batch(self, group: set[Generation], positions: NDArray[np.int32]) -> StepBatch:
        """Return the slots of a group's images that are not complete.

        Args:
            group: Generations to advance.
            positions: Position of each slot once all launched steps are done, int32 ``[N]``.
        """
        # Thousands of images may run, and a GPU waits for this: avoid Python work per image.
        leads = np.fromiter(self.by_lead, np.int32, len(self))
        if len(group) < len(self.leads):
            leads = leads[[owner in group for owner in self.owners[leads].tolist()]]
        leads = leads[positions[leads] < self._config.pixels]
        single, particle_slots, max_pixels = leads, list[int](), self._config.pixels
        if self.particle_images:
            images = [self.by_lead[lead] for lead in leads.tolist()]
            single = np.array([one.slots[0] for one in images if one.particles is None], np.int32)
            for one in images:
                if one.particles is not None:
                    particle_slots += one.slots
                    pixels = one.particles.pixels_to_next_update(int(positions[one.slots[0]]))
                    max_pixels = min(max_pixels, max(1, pixels))
        return StepBatch(single, np.array(particle_slots, np.int32), max_pixels)
