"""The same bytes for any threads, company and way of being computed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from scanline.kernels.native.abi import Precision
from scanline.kernels.native.cpu import usable_cores
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.kernels.native.fixtures import TINY
from tests.model.decoders.fixtures import KINDS, blank, every_kind, masked, network_for


@every_kind
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_prefill_is_stepping_to_the_last_bit(config: ModelConfig, threads: int, isa: str) -> None:
    """States, bits and parameters, for images prefilled together and one by one."""
    wide = replace(config, height=9, width=7, d_model=48)  # several blocks of rows an image
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
    for some in ([slots], np.split(slots, 4)):
        filled = NativeDecoder(network, 4, threads, isa=isa, team=threads)
        for part in some:
            filled.begin(part, inputs.select(part))
        assert filled.states.tobytes() == stepped.states.tobytes()
        assert filled.bits.tobytes() == stepped.bits.tobytes()


def test_what_a_team_was_held_up_in_is_prefilled_to_its_end() -> None:
    """Of eight threads a core most wait for one, as where other processes want them."""
    config = replace(KINDS["grey"], height=16, width=16)
    network, inputs = network_for(config), blank(config, 1)
    inputs.known[:] = True
    states = set()
    for threads in (1, min(64, 8 * usable_cores())):
        decoder = NativeDecoder(network, 1, threads, team=threads)
        decoder.begin([0], inputs)
        assert decoder.positions[0] == config.pixels
        states.add((decoder.bits.tobytes(), decoder.states.tobytes()))
    assert len(states) == 1


def test_a_team_is_no_larger_than_its_work() -> None:
    """Many cores do not crowd around one image: whole teams take images, as many as there are."""
    threads = max(64, 2 * (os.cpu_count() or 1))  # more than cores: nothing is measured
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
    assert small(1) == (1, 1)  # meeting would take longer than its products


def test_any_number_of_pairs_between_two_single_ones(isa: str) -> None:
    """Where a part would end inside a pair, both are in it: never more than it has room for."""
    config = tiny_config(classes=("cat", "dog"), height=2, width=3)
    pairs = 36  # of more slots than two of the widest parts
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


def test_how_many_share_an_image_is_measured_and_leaves_no_trace() -> None:
    threads = min(2, usable_cores())
    decoder = NativeDecoder(LinearTransformer(PRESETS["mnist"]), 2, threads)
    teams, used = decoder._native.partition(1)
    assert teams == 1
    assert 1 <= used <= threads
    assert not decoder.states.any()
    assert decoder._native.pass_counts == (0, 0)


# Every kind in what is some CPU's default, and the other precisions in two each.
IN_PRECISION: list[tuple[str, Precision]] = [
    *((kind, "bf16") for kind in KINDS), *((kind, "int16") for kind in KINDS),
    ("rgb", "float32"), ("paper", "float32"), ("grey", "int8"), ("conv", "int8"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "precision"), IN_PRECISION)
def test_the_same_bytes_for_any_threads_and_company(
    kind: str, precision: Precision, isa: str
) -> None:
    """Images arrive at random, in any slot, and leave; alone and in teams of threads."""
    count = 40
    wide = replace(KINDS[kind], d_model=48, n_heads=3)
    network, inputs = network_for(wide), masked(wide, count, seed=3)
    alone = NativeDecoder(network, 1, 1, precision=precision, isa=isa)
    expected = []
    for image in range(count):
        alone.begin([0], inputs.select([image]))
        alone.step([0], wide.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes(), alone.kv.tobytes()))
    for threads, team in ((1, 1), (2, 2), (3, 3), (5, 2), (9, 4)):
        generator = np.random.default_rng(threads)
        decoder = NativeDecoder(network, 37, threads, precision=precision, isa=isa, team=team)
        decoder.kv[:] = np.nan
        waiting, running = list(range(count)), dict[int, int]()
        while waiting or running:
            free = [slot for slot in range(37) if slot not in running]
            arriving = min(int(generator.choice([0, 1, 2, 30])), len(free), len(waiting))
            if arriving:
                slots = [int(slot) for slot in generator.permutation(free)[:arriving]]
                images = [waiting.pop() for _ in slots]
                decoder.begin(slots, inputs.select(images))
                running.update(zip(slots, images, strict=True))
            listed = [*generator.permutation(list(running)), -1]
            decoder.step(np.array(listed, np.int32), int(generator.integers(1, 8)))
            for slot in [s for s in running if decoder.positions[s] == wide.pixels]:
                one = (decoder.canvas[slot], decoder.bits[slot], decoder.kv[slot])
                assert tuple(part.tobytes() for part in one) == expected[running.pop(slot)]


@pytest.mark.parametrize("kind", ["grey", "rgb", "conv"])
@pytest.mark.parametrize("guided", [False, True])
def test_the_same_bytes_where_threads_have_many_images(kind: str, guided: bool, isa: str) -> None:
    """Any thread draws any part: of so many images, even nine threads have several each."""
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
        drawn.add((decoder.canvas.tobytes(), decoder.bits.tobytes(), decoder.kv.tobytes()))
    assert len(drawn) == 1


def test_a_pair_is_never_torn_nor_a_part_too_large(isa: str) -> None:
    """A plain image before guided ones and one behind them, as many as fill whole passes."""
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
