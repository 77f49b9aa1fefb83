"""ParticleFilter: several slots that draw one image side by side, weighed by the known pixels they
meet.

Sequential Monte Carlo (Doucet, de Freitas and Gordon 2001): a model in raster order knows nothing
of known pixels further down, so many particles draw on, each is weighed by the probability that it
gives the known pixels it passes, and where the weights grow uneven, the light ones are replaced by
copies of the heavy ones. Cheap, since a copy is a state of fixed size. As their number grows,
pixels follow what the request's temperature, top_p and guidance would draw, weighed by the plain
model's probability of the known pixels after them: with all three 1, the model's own posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import NO_SLOT, Decoder, InputBatch
from scanline.model.noise import resampling_noise

MAX_PARTICLES = 64
COLLAPSED = 1.5  # an effective sample size below which one particle has all the weight


class ParticleFilter:
    """The particles of one image: their slots, and their twins' where it is guided.

    They are weighed at fixed places: after known pixels that an unknown one, or the end of a row,
    follows. So nothing depends on how many pixels a call draws. ``slots[displayed]`` is the one to
    look at, ``log_evidence`` ln of the mean of the whole weights, an estimate of ln P(known pixels)
    of the plain model where it draws, ``effective`` the last effective sample size, and ``least``
    the least of all.
    """

    def __init__(
        self,
        config: ModelConfig,
        seed: int,
        known: NDArray[np.bool_],
        slots: Sequence[int],
        twins: Sequence[int] | None = None,
    ) -> None:
        self.slots = np.array(slots, np.int32)
        self.twins = None if twins is None else np.array(twins, np.int32)
        self.displayed = 0
        self.log_evidence = 0.0
        self.effective_size = self.min_effective_size = float(len(slots))
        self._config, self._known = config, known
        unknown = np.flatnonzero(~known)
        self._first, self._last = (int(unknown[0]), int(unknown[-1])) if unknown.size else (0, -1)
        self._updated_to = self._first
        ends = np.arange(1, config.pixels + 1)
        stops = known & (np.append(~known[1:], True) | (ends % config.width == 0))
        self._update_positions = ends[stops & (ends > self._first)]
        self._uniforms = resampling_noise(seed, len(self._update_positions) + 1)
        self._log_weights = np.zeros(len(slots))

    def begin(self, decoder: Decoder) -> None:
        """Make copies of the first particle, which has begun, each with uniforms of its own."""
        others = self.slots[1:]
        decoder.fork(
            np.repeat(self.slots[:1], len(others)), others,
            None if self.twins is None else self.twins[1:],
        )  # fmt: skip
        decoder.reseed(others, np.arange(1, len(self.slots)))

    def pixels_to_next_update(self, position: int) -> int:
        """Count the pixels from a position to where they are weighed next, or to the end."""
        ahead = self._update_positions[self._update_positions > position]
        return int(ahead[0] if ahead.size else self._config.pixels) - position

    def update(self, decoder: Decoder, show: Callable[[int, int], None]) -> None:
        """Weigh the particles where they are, if it is a place for that, and replace light ones.

        Nothing of theirs may be in flight. ``show(slot, pixel)`` is told, before anything is
        overwritten, that another is shown from now on, and the first pixel in which it differs.
        """
        position = int(decoder.positions[self.slots[0]])
        (stop,) = np.nonzero(self._update_positions == position)
        if not stop.size or position <= self._updated_to:
            return
        self._add_weights(decoder, position)
        count = len(self.slots)
        if self.effective_size >= count / 2 or position > self._last:
            return
        weights = self._normalize_weights()
        points = (float(self._uniforms[stop[0]]) + np.arange(count)) / count
        chosen = np.searchsorted(weights.cumsum(), points, side="right").clip(max=count - 1)
        copies = np.bincount(chosen, minlength=count)
        dead = np.flatnonzero(copies == 0)
        sources = np.repeat(np.arange(count), np.maximum(copies - 1, 0))
        if copies[self.displayed] == 0:
            self._display(decoder, int(copies.argmax()), position, show)
        decoder.fork(
            self.slots[sources], self.slots[dead], None if self.twins is None else self.twins[dead]
        )
        decoder.reseed(self.slots[dead], dead)

    def finish(self, decoder: Decoder, show: Callable[[int, int], None]) -> None:
        """Choose one of the finished particles by their weights: it is shown from now on."""
        end = self._config.pixels
        if self._updated_to < end:
            self._add_weights(decoder, end)
        point = float(self._uniforms[-1])
        chosen = int(np.searchsorted(self._normalize_weights().cumsum(), point, side="right"))
        chosen = min(chosen, len(self.slots) - 1)
        if chosen != self.displayed:
            self._display(decoder, chosen, end, show)

    def _add_weights(self, decoder: Decoder, position: int) -> None:
        met = np.flatnonzero(self._known[self._updated_to : position]) + self._updated_to
        bits = decoder.bits[np.ix_(self.slots, met)].sum(1, dtype=np.float64)
        self._log_weights -= math.log(2) * bits
        self._updated_to = position
        weights = np.exp(self._log_weights - self._log_weights.max())
        self.effective_size = float(weights.sum() ** 2 / (weights**2).sum())
        self.min_effective_size = min(self.min_effective_size, self.effective_size)

    def _normalize_weights(self) -> NDArray[np.float64]:
        """Give the weights, normalised, and begin anew: their mean goes into the evidence."""
        top = self._log_weights.max()
        weights: NDArray[np.float64] = np.exp(self._log_weights - top)
        self.log_evidence += float(top + np.log(weights.mean()))
        self._log_weights[:] = 0
        weights /= weights.sum()
        return weights

    def _display(
        self, decoder: Decoder, chosen: int, position: int, show: Callable[[int, int], None]
    ) -> None:
        before, after = (decoder.canvas[self.slots[i], :position] for i in (self.displayed, chosen))
        changed = np.flatnonzero((before != after).any(1))
        self.displayed = chosen
        show(int(self.slots[chosen]), int(changed[0]) if changed.size else position)


def run_particle_filters(
    decoder: Decoder, leads: NDArray[np.int64], inputs: InputBatch, count: int
) -> NDArray[np.int64]:
    """Draw images that have begun in the slots ``leads``, by ``count`` particles each, to the end.

    An image's other particles take the slots after its lead, and their twins those after its twin.
    Returns the slot of each that was chosen.
    """
    config = decoder.config
    filters = []
    for row, lead in enumerate(leads.tolist()):
        twin = int(inputs.twin[row])
        filters.append(ParticleFilter(
            config, int(inputs.seed[row]), inputs.known[row], range(lead, lead + count),
            None if twin == NO_SLOT else range(twin, twin + count),
        ))  # fmt: skip
        filters[-1].begin(decoder)
    running = filters
    while running:
        position = [int(decoder.positions[particles.slots[0]]) for particles in running]
        pixels = min(
            particles.pixels_to_next_update(at)
            for particles, at in zip(running, position, strict=True)
        )
        decoder.step(
            np.concatenate([particles.slots for particles in running]), min(pixels, config.width)
        )
        for particles in running:
            particles.update(decoder, lambda slot, changed: None)
        running = [c for c in running if decoder.positions[c.slots[0]] < config.pixels]
    for particles in filters:
        particles.finish(decoder, lambda slot, changed: None)
    return np.array([particles.slots[particles.displayed] for particles in filters])
