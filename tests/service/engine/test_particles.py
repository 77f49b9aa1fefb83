"""Particles and guided images in an engine: statistics, reproducibility and warnings."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Slots
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.sampling import SamplingParams
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec, GenerationStatus
from scanline.service.engine.image import FinishReason, ParticleStats
from scanline.service.engine.queue_limits import QueueLimits
from tests.conftest import tiny_config
from tests.model.few_values import SMALL, VALUES, small_network


def engine_of(network: LinearTransformer, slots: int) -> Engine:
    decoder = create_decoder(network, slots, "native", 1)
    return Engine("small", decoder, QueueLimits(max_waiting=10_000, grace=600))


def drawn(engine: Engine, specs: list[GenerationSpec], pause: float = 0.0) -> list[Generation]:
    """Draw all specs, submitted with pauses in between, and close the engine."""
    engine.start()
    try:
        generations = []
        for spec in specs:
            generations.append(engine.queue.submit(spec))
            time.sleep(pause)
        for generation in generations:
            with engine.queue.reading(generation):
                while not generation.finished:
                    time.sleep(0.005)
        assert engine.slots_in_use == 0
    finally:
        engine.close(drain=0)
    return generations


def posterior(
    network: LinearTransformer, known: dict[int, int], label: int
) -> dict[tuple[int, ...], float]:
    """Return the probability of each image given the known pixels, by enumeration."""
    T = network.config.pixels
    images = [x for x in itertools.product(range(VALUES), repeat=T)
              if all(x[pixel] == value for pixel, value in known.items())]  # fmt: skip
    canvas = torch.tensor(images, dtype=torch.uint8).unsqueeze(-1)
    with torch.no_grad():
        bits = network.bits(canvas, torch.full((len(images),), label)).double().sum(1)
    weights = torch.exp2(-(bits - bits.min()))
    return dict(zip(images, (weights / weights.sum()).tolist(), strict=True))


def frequencies(generation: Generation) -> dict[tuple[int, ...], float]:
    images = [tuple(image.read(0, image.position).ravel().tolist()) for image in generation.images]
    return {image: images.count(image) / len(images) for image in set(images)}


def total_variation(
    seen: dict[tuple[int, ...], float], true: dict[tuple[int, ...], float]
) -> float:
    """Return the total variation distance of two distributions."""
    return sum(abs(seen.get(x, 0) - true.get(x, 0)) for x in seen.keys() | true.keys()) / 2


def test_particles_approach_the_true_posterior() -> None:
    """The last two pixels are known. More particles come closer to the enumerated posterior."""
    network, known = small_network(SMALL), {4: 2, 5: 2}
    count = 600
    true = posterior(network, known, 1)
    canvas, mask = np.zeros((6, 1), np.uint8), np.zeros(6, np.bool_)
    for pixel, value in known.items():
        canvas[pixel], mask[pixel] = value, True
    distances = []
    for particles in (1, 4, 32):
        spec = GenerationSpec(
            n=count,
            seed=11,
            canvas=canvas,
            known=mask,
            sampling=SamplingParams(label=1, particles=particles),
        )
        (generation,) = drawn(engine_of(network, 128), [spec])
        assert all((image.read(0, 6)[mask] == canvas[mask]).all() for image in generation.images)
        distances.append(total_variation(frequencies(generation), true))
    chance = total_variation(
        {x: c / count for x, c in zip(true, np.random.default_rng(0).multinomial(
            count, list(true.values())), strict=True)}, true,
    )  # fmt: skip
    assert distances[0] > 2 * distances[2]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < chance + 0.06


def test_the_evidence_is_the_probability_of_the_known_pixels() -> None:
    network = small_network(SMALL)
    every = posterior(network, {}, 0)
    canvas, mask = np.full((6, 1), 2, np.uint8), np.zeros(6, np.bool_)
    mask[5] = True
    true = sum(p for image, p in every.items() if image[5] == 2)
    spec = GenerationSpec(
        n=64, seed=0, canvas=canvas, known=mask, sampling=SamplingParams(label=0, particles=16)
    )
    (generation,) = drawn(engine_of(network, 64), [spec])
    ran: list[ParticleStats] = [image.particles for image in generation.images if image.particles]
    assert len(ran) == 64
    assert np.exp([one.log_evidence for one in ran]).mean() == pytest.approx(true, rel=0.15)
    assert all(1 <= one.min_effective_size <= one.effective_size <= 16 for one in ran)


def mixed_specs(config: ModelConfig) -> list[GenerationSpec]:
    """Return plain, guided, truncated and completed images, with one and with several particles."""
    generator = np.random.default_rng(4)
    canvas = generator.integers(0, VALUES, (config.pixels, config.channels), np.uint8)
    some: list[NDArray[np.bool_]] = [generator.random(config.pixels) < 0.4 for _ in range(2)]
    given, otherwise = (dict[str, Any](canvas=canvas, known=known) for known in some)
    return [
        GenerationSpec(n=3, seed=1),
        GenerationSpec(n=2, seed=20, sampling=SamplingParams(label=1, guidance=2.0)),
        GenerationSpec(n=2, seed=30, sampling=SamplingParams(label=0, particles=5), **given),
        GenerationSpec(
            n=2,
            seed=40,
            sampling=SamplingParams(random_label=True, guidance=1.5, particles=3, top_p=0.9),
            **otherwise,
        ),
        GenerationSpec(n=3, seed=50, sampling=SamplingParams(top_p=0.5, temperature=1.2)),
        GenerationSpec(n=1, seed=60, sampling=SamplingParams(label=1, particles=8), **given),
    ]


def test_a_seed_gives_the_same_bytes_alone_and_among_others() -> None:
    config = tiny_config(classes=("cat", "dog"), short_conv="2x3")
    network = small_network(config)
    expected = [
        [image.read(0, config.pixels) for image in drawn(engine_of(network, 12), [spec])[0].images]
        for spec in mixed_specs(config)
    ]
    for slots, pause in ((8, 0.0), (13, 0.002), (40, 0.0)):
        generations = drawn(engine_of(network, slots), mixed_specs(config), pause)
        for generation, images in zip(generations, expected, strict=True):
            assert generation.error is None
            for image, pixels in zip(generation.images, images, strict=True):
                assert np.array_equal(image.read(0, config.pixels), pixels)


def test_a_random_label_depends_on_the_image_seed_only() -> None:
    network = small_network(SMALL)
    (together,) = drawn(
        engine_of(network, 8),
        [GenerationSpec(n=12, seed=5, sampling=SamplingParams(random_label=True))],
    )
    labels = [image.label for image in together.images]
    assert set(labels) == {0, 1}
    for image in together.images:
        spec = GenerationSpec(n=1, seed=image.seed, sampling=SamplingParams(label=image.label))
        (alone,) = drawn(engine_of(network, 1), [spec])
        assert np.array_equal(alone.images[0].read(0, 6), image.read(0, 6))


def test_cancelled_images_free_all_their_slots() -> None:
    network = small_network(tiny_config(classes=("cat", "dog")))
    engine = engine_of(network, 12)
    engine.start()
    try:
        spec = GenerationSpec(
            n=200, seed=0, sampling=SamplingParams(label=1, guidance=2.0, particles=3)
        )
        generation = engine.queue.submit(spec)
        with engine.queue.reading(generation):
            while generation.status is GenerationStatus.WAITING:
                time.sleep(0.001)
            engine.queue.cancel(generation)
            while not generation.finished:
                time.sleep(0.001)
        reasons = {image.finish_reason for image in generation.images}
        assert FinishReason.CANCELLED in reasons
        assert engine.slots_in_use == 0
        # Otherwise a slow path would be used from then on.
        assert engine._slots.particle_images == 0
        after = engine.queue.submit(GenerationSpec(n=12, seed=1))
        with engine.queue.reading(after):
            while not after.finished:
                time.sleep(0.001)
        assert after.error is None
    finally:
        engine.close(drain=0)


def test_an_image_that_needs_many_slots_is_not_overtaken_forever() -> None:
    """It waits until enough slots are free, and the images behind it wait too."""
    network = small_network(SMALL)
    specs = [
        GenerationSpec(n=30, seed=0),
        GenerationSpec(n=1, seed=1, sampling=SamplingParams(label=0, particles=8)),
        GenerationSpec(n=30, seed=2),
    ]
    _, wide, last = drawn(engine_of(network, 8), specs)
    assert wide.started is not None
    assert last.ended is not None
    assert wide.started < last.ended


def test_collapsed_particles_cause_a_warning() -> None:
    network = small_network(SMALL)
    with torch.no_grad():
        network.head.predictor.weight[VALUES:].mul_(5)
    canvas, mask = np.zeros((6, 1), np.uint8), np.zeros(6, np.bool_)
    mask[5], canvas[5] = True, 200  # a value that is never drawn, so that the weights differ widely
    spec = GenerationSpec(
        n=2, seed=3, canvas=canvas, known=mask, sampling=SamplingParams(label=0, particles=4)
    )
    (generation,) = drawn(engine_of(network, 8), [spec])
    particles = [image.particles for image in generation.images]
    collapsed = sum(one is not None and one.min_effective_size < 1.5 for one in particles)
    assert collapsed > 0
    assert len(generation.warnings) == 1
    for image in generation.images:
        # Also if it recovered by the end.
        image.particles = ParticleStats(
            effective_size=4.0, min_effective_size=1.0, log_evidence=0.0
        )
    assert "in 2 of 2 images" in generation.warnings[0]
    (plain,) = drawn(engine_of(network, 8), [GenerationSpec(n=2, seed=3)])
    assert plain.warnings == []


def test_particles_without_effect_cause_a_warning() -> None:
    canvas, mask = np.zeros((6, 1), np.uint8), np.arange(6) < 3
    for known in (mask, None):
        spec = GenerationSpec(
            n=1, seed=3, canvas=canvas, known=known, sampling=SamplingParams(particles=4)
        )
        (generation,) = drawn(engine_of(small_network(SMALL), 8), [spec])
        assert ["`particles` has no effect" in warning for warning in generation.warnings] == [True]


def test_the_bits_are_those_of_the_displayed_particle() -> None:
    network = small_network(SMALL)
    canvas, mask = np.full((6, 1), 2, np.uint8), np.arange(6) == 5
    spec = GenerationSpec(
        n=8, seed=0, canvas=canvas, known=mask, sampling=SamplingParams(label=1, particles=8)
    )
    (generation,) = drawn(engine_of(network, 64), [spec])
    pixels = torch.from_numpy(np.stack([image.read(0, 6) for image in generation.images]))
    with torch.no_grad():
        bits = network.bits(pixels, torch.ones(8, dtype=torch.long)).sum(1).tolist()
    assert [image.bits for image in generation.images] == pytest.approx(bits, rel=2e-3)


@pytest.mark.parametrize("known", [{0: 1, 5: 2}, {2: 0, 5: 2}], ids=["before", "between"])
def test_the_evidence_counts_each_known_pixel_once(
    known: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix does not count, and resampling does not change the evidence."""
    network = small_network(SMALL, seed=8)  # its third pixels depend strongly on those before them
    every = posterior(network, {}, 0)

    def chance(known: dict[int, int]) -> float:
        return sum(p for x, p in every.items() if all(x[i] == v for i, v in known.items()))

    canvas, mask = np.zeros((6, 1), np.uint8), np.zeros(6, np.bool_)
    for pixel, value in known.items():
        canvas[pixel], mask[pixel] = value, True
    engine, forks = engine_of(network, 128), list[int]()
    fork = engine.decoder.fork

    def counted(sources: Slots, targets: Slots, twins: Slots | None = None) -> None:
        forks.append(len(targets))
        fork(sources, targets, twins)

    monkeypatch.setattr(engine.decoder, "fork", counted)
    spec = GenerationSpec(
        n=400, seed=0, canvas=canvas, known=mask, sampling=SamplingParams(label=0, particles=32)
    )
    (generation,) = drawn(engine, [spec])
    ran = [image.particles for image in generation.images if image.particles]
    true = chance(known) / (chance({0: known[0]}) if 0 in known else 1)
    assert np.exp([one.log_evidence for one in ran]).mean() == pytest.approx(true, rel=0.1)
    if 2 in known:
        assert len(forks) > 500  # one per image at the start, and most once more
        assert any(one.min_effective_size < one.effective_size for one in ran)
        true_shares = posterior(network, known, 0)
        assert total_variation(frequencies(generation), true_shares) < 0.2
