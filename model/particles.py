"""Particle filter: several slots draw one image, weighted by the known pixels that they reach.

A model in raster order cannot see known pixels further down. Sequential Monte Carlo (Doucet, de
Freitas and Gordon 2001) takes them into account: many particles draw the image, each is weighted
by the probability that it gives to the known pixels it passes, and when the weights become uneven,
particles with small weights are replaced by copies of those with large ones. A copy is cheap,
because it is a state of fixed size.

As the number of particles grows, the pixels follow the distribution given by temperature, top_p and
guidance, weighted by the plain model's probability of the known pixels after them. If all three are
1, that is the posterior of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import NO_SLOT, Decoder, InputBatch
from scanline.model.noise import resampling_noise
from scanline.model.portable_math import exp, running_sum

MAX_PARTICLES = 64
LN_2 = 0.6931471805599453
COLLAPSED = 1.5  # effective sample size below which one particle has nearly all the weight


class ParticleFilter:
    """Particles of one image.

    The weights are updated at fixed positions: after each run of known pixels, and at the end of
    each row within one. So the result does not depend on the number of pixels per call.

    Attributes:
        slots: int32 ``[particles]``, the slot of each particle.
        twins: int32 ``[particles]``, their twin slots, or None for an unguided image.
        displayed: The index of the particle to show.
        log_evidence: Estimate of ln P(known pixels) under the plain model.
        effective_size: The effective sample size at the last update.
        min_effective_size: The smallest effective sample size so far.
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
        """Copy the first particle, which has begun, to the others; give each its own uniforms."""
        others = self.slots[1:]
        decoder.fork(
            np.repeat(self.slots[:1], len(others)), others,
            None if self.twins is None else self.twins[1:],
        )  # fmt: skip
        decoder.reseed(others, np.arange(1, len(self.slots)))

    def pixels_to_next_update(self, position: int) -> int:
        """Return the number of pixels from ``position`` to the next update, or to the end."""
        later = self._update_positions[self._update_positions > position]
        return int(later[0] if later.size else self._config.pixels) - position

    def update(self, decoder: Decoder, show: Callable[[int, int], None]) -> None:
        """Update the weights if this is an update position; resample if they are uneven.

        None of the slots may be in flight. If another particle is displayed from now on,
        ``show(slot, pixel)`` is called with its slot and the first pixel that differs, before any
        slot is overwritten.
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
        chosen = np.searchsorted(running_sum(weights)[1:], points, side="right").clip(max=count - 1)
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
        """Choose the result among the finished particles at random by weight; display it."""
        end = self._config.pixels
        if self._updated_to < end:
            self._add_weights(decoder, end)
        point = float(self._uniforms[-1])
        chosen = int(
            np.searchsorted(running_sum(self._normalize_weights())[1:], point, side="right")
        )
        chosen = min(chosen, len(self.slots) - 1)
        if chosen != self.displayed:
            self._display(decoder, chosen, end, show)

    def _add_weights(self, decoder: Decoder, position: int) -> None:
        passed = np.flatnonzero(self._known[self._updated_to : position]) + self._updated_to
        bits = decoder.bits[np.ix_(self.slots, passed)].astype(np.float64)
        self._log_weights -= LN_2 * running_sum(bits)[:, -1]
        self._updated_to = position
        weights = exp(self._log_weights - self._log_weights.max())
        total, squares = running_sum(weights)[-1], running_sum(weights * weights)[-1]
        self.effective_size = float(total * total / squares)
        self.min_effective_size = min(self.min_effective_size, self.effective_size)

    def _normalize_weights(self) -> NDArray[np.float64]:
        """Return the normalised weights, add their mean to the evidence, and reset them."""
        top = self._log_weights.max()
        weights = exp(self._log_weights - top)
        total = running_sum(weights)[-1]
        self.log_evidence += float(top) + math.log(total / len(weights))
        self._log_weights[:] = 0
        weights /= total
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
    """Finish images that have begun, with ``count`` particles each.

    Args:
        decoder: The decoder of the images.
        leads: The slot of each image. Its other particles take the slots after it, and their
            twins those after its twin.
        inputs: The inputs with which the images began.
        count: The number of particles per image.

    Returns:
        The slot of the chosen particle of each image.
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
        pixels = min(
            one.pixels_to_next_update(int(decoder.positions[one.slots[0]])) for one in running
        )
        slots = np.concatenate([one.slots for one in running])
        decoder.step(slots, min(pixels, config.width))
        for one in running:
            one.update(decoder, lambda slot, changed: None)
        running = [one for one in running if decoder.positions[one.slots[0]] < config.pixels]
    for one in filters:
        one.finish(decoder, lambda slot, changed: None)
    return np.array([one.slots[one.displayed] for one in filters])
