"""Reading generations from other threads: callbacks and memory."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections import Counter
from typing import Any

import numpy as np

from scanline.service.api.waiting import wait_for_change, wait_until_finished
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.http.disconnect import WaitingClient
from tests.service.engine.fixtures import Gate, assert_right, drawn, running
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import DEADLINE, GREY, until


def test_ids_cannot_be_guessed() -> None:
    """Without API keys, a generation's id is all that protects it."""
    one, other = (Generation("fake", GREY, GenerationSpec(n=1, seed=1)).id for _ in range(2))
    assert re.fullmatch("gen_[0-9a-f]{24}", one)
    assert one[4:12] != other[4:12]
    assert one[-8:] != other[-8:]


def test_each_change_callback_is_called_once_and_immediately_after_the_end() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    woken: Counter[str] = Counter()
    with running(decoder) as engine:
        generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        generation.add_change_callback(lambda: woken.update("a"))
        generation.add_change_callback(lambda: woken.update("b"))
        assert not woken
        gate.let(2)
        until(lambda: woken["b"])
        until(lambda: generation.images[0].position > 0)
        gate.open()
        assert_right(generation)
        generation.add_change_callback(lambda: woken.update("c"))
        assert woken == {"a": 1, "b": 1, "c": 1}


def test_a_change_between_read_and_callback_is_not_missed() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))
    woken: Counter[str] = Counter()
    seen = generation.version
    generation.add_change_callback(lambda: woken.update("a"), seen)
    assert not woken
    generation.notify()
    assert woken == {"a": 1}
    generation.add_change_callback(lambda: woken.update("b"), seen)
    assert woken == {"a": 1, "b": 1}
    generation.add_change_callback(lambda: woken.update("c"), generation.version)
    assert woken == {"a": 1, "b": 1}


def test_callbacks_are_removed_after_a_timeout() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))

    async def come_and_go() -> None:
        client = WaitingClient("somebody", asyncio.create_task(asyncio.sleep(DEADLINE)))
        await wait_for_change(generation, client, 0.0, generation.version)
        await wait_until_finished(generation, client, 0.0)
        client.gone.cancel()

    asyncio.run(come_and_go())
    assert not generation._change_callbacks
    assert not generation._done_callbacks


def test_a_finished_generation_references_neither_decoder_nor_callbacks() -> None:
    """A cached generation holds its images' pixels only."""

    class Reader:
        def told(self) -> None: ...

    decoder, reader = FakeDecoder(GREY, 4), Reader()
    gate = Gate(decoder)
    with running(decoder) as engine:
        generation = engine.queue.submit(GenerationSpec(n=9, seed=0))
        gate.wait()
        generation.add_change_callback(reader.told)
        generation.add_done_callback(reader.told)
        with engine.queue.reading(generation):
            gate.open()
            pixels = drawn(generation)
    kept: dict[str, weakref.ref[Any]] = {
        "the pixels of every slot": weakref.ref(decoder.canvas),
        "their positions": weakref.ref(decoder.positions),
        "the reader": weakref.ref(reader),
    }
    del decoder, engine, gate, reader
    gc.collect()
    assert [name for name, thing in kept.items() if thing() is not None] == []
    for before, after in zip(pixels, drawn(generation), strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_engine_drops_generations_that_left_the_result_cache() -> None:
    """Idempotency keys disappear together with it."""
    decoder = FakeDecoder(GREY, 4)
    with running(decoder, keep_finished=0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=3, seed=0))
        kept = weakref.ref(generation)
        with engine.queue.reading(generation):
            assert_right(generation)
        assert engine.queue.find(generation.id) is None
        del generation
        until(lambda: [gc.collect(), kept()][1] is None, "its deletion")
