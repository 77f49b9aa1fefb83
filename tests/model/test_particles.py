"""Tests of the particle filter: updates of weights, resampling, and the displayed particle."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.particles import ParticleFilter
from tests.model.few_values import SMALL, small_network
from tests.service.fake_decoders import FakeDecoder


def test_weights_are_updated_at_the_end_of_each_known_row() -> None:
    known = np.array([False, True, True, True, True, True])
    particles = ParticleFilter(SMALL, 0, known, [0, 1])
    assert [particles.pixels_to_next_update(position) for position in range(6)] == [
        3,
        2,
        1,
        3,
        2,
        1,
    ]


def test_viewers_are_told_of_every_changed_pixel() -> None:
    """Pixels read before a revision, and after it, make up the final image."""
    known, canvas = np.isin(np.arange(6), (2, 5)), np.array([[0], [0], [0], [0], [0], [2]])
    decoder = create_decoder(small_network(SMALL, seed=8), 8, "native", 1)
    inputs = InputBatch.empty(SMALL, 1)
    inputs.known[0], inputs.canvas[0], inputs.label[0] = known, canvas, 0
    switched = 0
    for seed in range(60):
        inputs.seed[0], seen, shown = seed, np.zeros((6, 1), np.uint8), {"slot": 0, "from": 0}

        def read(seen: NDArray[np.uint8] = seen, shown: dict[str, int] = shown) -> None:
            new = slice(shown["from"], int(decoder.positions[shown["slot"]]))
            seen[new] = decoder.canvas[shown["slot"], new]
            shown["from"] = new.stop

        def show(slot: int, changed: int, shown: dict[str, int] = shown) -> None:
            nonlocal switched
            switched += 1
            position = int(decoder.positions[shown["slot"]])
            before, after = (decoder.canvas[i, :position] for i in (shown["slot"], slot))
            differ = np.flatnonzero((before != after).any(1)).tolist()
            assert changed == [*differ, position][0]  # no unchanged pixel is sent again
            shown |= {"slot": slot, "from": min(shown["from"], changed)}

        particles = ParticleFilter(SMALL, seed, known, range(8))
        decoder.begin([0], inputs)
        particles.begin(decoder)
        while (position := int(decoder.positions[0])) < SMALL.pixels:
            decoder.step(particles.slots, particles.pixels_to_next_update(position))
            read()
            particles.update(decoder, show)
            read()
        particles.finish(decoder, show)
        read()
        assert shown["slot"] == particles.slots[particles.displayed]
        assert np.array_equal(seen, decoder.canvas[shown["slot"]])
    assert switched > 20


class FixedCostDecoder(FakeDecoder):
    """Decoder whose pixels cost ``costs[pixel][slot]`` bits, in eight slots."""

    def __init__(self, costs: dict[int, list[int]]) -> None:
        super().__init__(SMALL, 8)
        self.costs, self.forks = costs, list[tuple[list[int], list[int]]]()

    def _pixel(self, slot: int) -> None:
        super()._pixel(slot)
        pixel = int(self.positions[slot]) - 1
        self.bits[slot, pixel] = self.costs.get(pixel, [0] * 8)[slot]

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        super()._copy_state(sources, targets)
        self.forks.append((sources.tolist(), targets.tolist()))


@pytest.mark.parametrize(
    ("seed", "forks", "shown"),
    [
        (1, [([1, 1, 1, 1, 7], [0, 2, 3, 4, 6]), ([4] * 6, [1, 2, 3, 5, 6, 7])], [1, 4, 4, 0]),
        (2, [([1, 1, 1, 7], [0, 2, 3, 4]), ([4] * 5, [0, 1, 2, 5, 7])], [1, 4, 4, 3]),
        (7, [([1, 1, 1, 7], [0, 2, 3, 4]), ([4] * 6, [1, 2, 3, 5, 6, 7])], [1, 4, 4, 0]),
    ],
)
def test_resampling_depends_on_seed_and_weights_only(
    seed: int, forks: list[tuple[list[int], list[int]]], shown: list[int]
) -> None:
    """The choice must be the same in every version; and each copy draws its own values."""
    decoder = FixedCostDecoder(
        {1: [7, 0, 7, 11, 10, 2, 3, 1], 3: [3, 9, 8, 9, 0, 10, 5, 8], 5: [0, 10, 6, 0, 8, 6, 0, 7]}
    )
    inputs = InputBatch.empty(SMALL, 1)
    inputs.known[0] = known = np.arange(6) % 2 == 1  # each follows an unknown pixel
    particles = ParticleFilter(SMALL, seed, known, range(8))
    decoder.begin([0], inputs)
    particles.begin(decoder)
    decoder.forks.clear()
    seen = []
    while (position := int(decoder.positions[0])) < SMALL.pixels:
        decoder.step(particles.slots, particles.pixels_to_next_update(position))
        particles.update(decoder, lambda *_: None)
        effective = particles.effective_size
        particles.update(decoder, lambda *_: None)  # as the engine may do while others run
        assert particles.effective_size == effective
        assert sorted(decoder.inputs.particle.tolist()) == list(range(8))
        seen.append(particles.displayed)
    particles.finish(decoder, lambda *_: None)
    assert decoder.forks == forks
    assert [*seen, particles.displayed] == shown
