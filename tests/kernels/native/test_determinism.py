"""Identical bytes for any number of threads, any batch and any schedule."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np

from scanline.kernels.native.abi import Precision
from scanline.kernels.native.cpu import usable_cores
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.kernels.native.fixtures import KINDS, TINY, every_kind, on_isas
from tests.model.decoders.fixtures import blank, draw_at_random_times, masked, network_for


@every_kind
def test_prefill_equals_stepping_bitwise(config: ModelConfig, isa: str) -> None:
    """Compare states and bits of images prefilled together and one by one."""
    wide = replace(config, height=9, width=7, d_model=48)  # several blocks of rows per image
    inputs = blank(wide, 4)
    lengths = np.array([1, 8, 25, wide.pixels], np.int32)
    slots = np.arange(4, dtype=np.int32)
    network = network_for(wide)
    stepped = NativeDecoder(network, 4, 1, isa=isa)
    stepped.begin(slots, inputs)
    for slot, length in enumerate(lengths):
        for _ in range(length):
            stepped.step([slot], 1)
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(wide.pixels) < lengths[:, None]
    for threads, some in itertools.product((1, 2, 3), ([slots], np.split(slots, 4))):
        filled = NativeDecoder(network, 4, threads, isa=isa, team=threads)
        for part in some:
            filled.begin(part, inputs.select(part))
        assert filled.states.tobytes() == stepped.states.tobytes(), threads
        assert filled.bits.tobytes() == stepped.bits.tobytes()


def test_prefill_of_a_slowed_team_completes() -> None:
    """More threads than cores wait for each other, as if other processes competed for the cores.

    A team has at most 64 threads, however many are asked for.
    """
    config = replace(KINDS["grey"], height=16, width=16)
    network, inputs = network_for(config), blank(config, 1)
    inputs.known[:] = True
    states = set()
    for threads in (1, 8 * usable_cores(), 70):
        decoder = NativeDecoder(network, 1, threads, team=threads)
        decoder.begin([0], inputs)
        assert decoder.positions[0] == config.pixels
        states.add((decoder.bits.tobytes(), decoder.states.tobytes()))
    assert len(states) == 1


def test_team_size_is_limited_by_the_work() -> None:
    """With many cores, images are distributed over teams instead of all cores sharing one image."""
    threads = max(
        64, 2 * (os.cpu_count() or 1)
    )  # more than cores, so that team sizes are estimated instead of measured
    network = LinearTransformer(replace(PRESETS["mnist"], n_layers=1))
    partition = NativeDecoder(network, 1, threads)._native.partition
    assert partition(1)[0] == 1
    most = partition(1)[1]
    assert 2 <= most <= 16
    for count in range(1, 2 * threads):
        teams, used = partition(count)
        assert 1 <= teams <= count
        assert min(count, threads) <= used <= min(threads, most * teams)
    assert partition(2 * threads) == (threads, threads)
    small = NativeDecoder(TINY, 1, threads)._native.partition
    assert small(1) == (1, 1)  # barriers would take longer than the products


def test_any_number_of_pairs_between_two_unguided_images(isa: str) -> None:
    """A pair is never split, and a part never exceeds its maximum size."""
    config = tiny_config(classes=("cat", "dog"), height=2, width=3)
    pairs = 36  # more slots than two parts of maximum size
    images = np.arange(pairs + 2, dtype=np.int32)
    inputs = blank(config, len(images))
    inputs.label[:] = 1
    inputs.guidance[1:-1], inputs.twin[1:-1] = 2.0, len(images) + images[:-2]
    network = network_for(config)
    alone = NativeDecoder(network, 2 * len(images), 1, isa=isa)
    for image in images.tolist():
        alone.begin([image], inputs.select([image]))
        alone.step([image], config.pixels)
    together = NativeDecoder(network, 2 * len(images), 1, isa=isa)
    for count in range(pairs + 1):
        some = np.r_[images[: count + 1], images[-1:]]
        together.begin(some, inputs.select(some))
        together.step(some, config.pixels)
        np.testing.assert_array_equal(together.canvas[some], alone.canvas[some])
        np.testing.assert_array_equal(together.bits[some], alone.bits[some])


def test_measuring_the_team_size_leaves_no_trace() -> None:
    threads = min(2, usable_cores())
    decoder = NativeDecoder(LinearTransformer(PRESETS["mnist"]), 2, threads)
    teams, used = decoder._native.partition(1)
    assert teams == 1
    assert 1 <= used <= threads
    assert not decoder.states.any()
    assert decoder._native.pass_counts == (0, 0, 0)


# Every kind in each CPU's default precision, and two kinds in each of the other precisions.
IN_PRECISION: list[tuple[str, Precision]] = [
    *((kind, "bf16") for kind in KINDS), *((kind, "int16") for kind in KINDS),
    ("rgb", "float32"), ("paper", "float32"), ("grey", "int8"), ("rgb", "int8"),
    ("grey", "int10"), ("rgb", "int10"),
]  # fmt: skip


@on_isas(
    "kind,precision", {"-".join(case): case for case in IN_PRECISION},
    ["grey-bf16", "paper-int16", "rgb-float32", "grey-int8", "grey-int10"],
)  # fmt: skip
def test_bytes_do_not_depend_on_threads_and_batch(
    kind: str, precision: Precision, isa: str
) -> None:
    """Images arrive and leave at random, in any slot, with and without teams of threads."""
    count = 40
    wide = replace(KINDS[kind], d_model=48, n_heads=3)
    network, inputs = network_for(wide), masked(wide, count, seed=3)
    alone = NativeDecoder(network, 1, 1, precision=precision, isa=isa)
    expected = []
    for image in range(count):
        alone.begin([0], inputs.select([image]))
        alone.step([0], wide.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes(), alone.states.tobytes()))
    for threads, team in ((1, 1), (2, 2), (3, 3), (5, 2), (9, 4)):
        decoder = NativeDecoder(network, 37, threads, precision=precision, isa=isa, team=team)
        decoder.states[:] = np.nan
        generator = np.random.default_rng(threads)
        for image, slot in draw_at_random_times(decoder, inputs, generator, (0, 1, 2, 30), 7):
            one = (decoder.canvas[slot], decoder.bits[slot], decoder.states[slot])
            assert tuple(part.tobytes() for part in one) == expected[image]


@on_isas(
    "kind,guided",
    {
        f"{kind}-{'guided' if guided else 'plain'}": (kind, guided)
        for kind in ("grey", "rgb", "subpixel")
        for guided in (False, True)
    },
    ["grey-guided"],
)
def test_bytes_do_not_depend_on_threads_with_many_images(kind: str, guided: bool, isa: str) -> None:
    """Parts are taken by any thread; even nine threads draw several images each."""
    count = 35 if guided else 67
    wide = replace(KINDS[kind], height=9, width=8, d_model=48, n_heads=3, classes=("a", "b"))
    network, inputs = network_for(wide), masked(wide, count, seed=3)
    images = np.arange(count, dtype=np.int32)
    if guided:
        inputs.guidance[:], inputs.twin[:] = 1.7, images + count
        inputs.label[:] = images % 2
    drawn = set()
    for threads, calls in ((1, 1), (2, 2), (3, 1), (5, 1), (9, 1)):
        decoder = NativeDecoder(network, 2 * count, threads, isa=isa, team=1)
        decoder.begin(images, inputs)
        decoder.step(images[::3], 5)
        for _ in range(calls):
            decoder.step(images[::-1], wide.pixels // calls)
        decoder.step(images, wide.pixels)
        assert (decoder.positions[images] == wide.pixels).all()
        drawn.add((decoder.canvas.tobytes(), decoder.bits.tobytes(), decoder.states.tobytes()))
    assert len(drawn) == 1


def test_pairs_are_never_split(isa: str) -> None:
    """An unguided image before and after guided ones, which fill whole passes."""
    config = replace(KINDS["grey"], height=3, width=2)
    network = network_for(config)
    for pairs in (5, 8, 11, 15):
        count = pairs + 2
        inputs, images = blank(config, count), np.arange(count, dtype=np.int32)
        inputs.label[:] = images % 2
        inputs.guidance[1:-1], inputs.twin[1:-1] = 1.7, images[1:-1] + count
        together, alone = (
            NativeDecoder(network, 2 * count, 1, isa=isa, speculate=False) for _ in range(2)
        )
        for some in ([images], np.split(images, count)):
            decoder = together if len(some) == 1 else alone
            for part in some:
                decoder.begin(part, inputs.select(part))
                decoder.step(part, config.pixels)
        assert together.canvas.tobytes() == alone.canvas.tobytes()
        assert together.bits.tobytes() == alone.bits.tobytes()
