"""Which images run, whose they are, and which slots they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scanline.model.config import ModelConfig
from scanline.model.particles import Particles
from scanline.service.generation import Generation, Image
from scanline.service.queue import Taken
from scanline.service.turns import LIGHT


class Run(NamedTuple):
    """An image that runs: its slots, the first of which is its name here, and their twins."""

    generation: Generation
    image: Image
    slots: list[int]
    twins: list[int]
    particles: Particles | None
    spare: bool


class Runs:
    """The images that run, by name, and the slots that are free.

    ``spare`` of these are for small requests alone. ``of`` gives the names of each generation's,
    ``owners`` the generation of each name; ``crowds`` counts those of several particles.
    """

    def __init__(self, config: ModelConfig, slots: int, spare: int) -> None:
        self._config = config
        self.free = list(range(slots - 1, -1, -1))  # the next one last
        self.spare = spare
        self.by_name: dict[int, Run] = {}
        self.of: dict[Generation, set[int]] = {}
        self.owners = np.empty(slots, object)
        self.crowds = 0

    def __len__(self) -> int:
        return len(self.by_name)

    def add(self, taken: Taken) -> Run:
        """Give an image its slots."""
        generation, image, spare = taken
        spec = generation.spec
        slots = [self.free.pop() for _ in range(spec.particles)]
        twins = [self.free.pop() for _ in slots] if spec.guided else []
        particles = None
        if spec.particles > 1:
            known = np.zeros(self._config.pixels, np.bool_) if spec.known is None else spec.known
            particles = Particles(self._config, image.seed, known, slots, twins or None)
        run = Run(generation, image, slots, twins, particles, spare)
        self.spare -= spec.slots if spare else 0
        self.by_name[slots[0]] = run
        self.owners[slots[0]] = generation
        self.crowds += particles is not None
        self.of.setdefault(generation, set()).add(slots[0])
        return run

    def remove(self, name: int) -> Run:
        """Take an image's slots back."""
        run = self.by_name.pop(name)
        self.owners[name] = None
        self.crowds -= run.particles is not None
        self.free += reversed(run.slots + run.twins)
        self.spare += run.generation.spec.slots if run.spare else 0
        self.of[run.generation].remove(name)
        if not self.of[run.generation]:
            del self.of[run.generation]
        return run

    @property
    def heaviest(self) -> int:
        """Count the slots that the largest generation has or wants."""
        return max((generation.demand for generation in self.of), default=0)

    @property
    def light(self) -> set[Generation]:
        """Give the generations that want few slots beside the heaviest."""
        heaviest = self.heaviest
        return {generation for generation in self.of if generation.size * LIGHT <= heaviest}
