"""Tests of the timings of known pixels, on the CPU."""

from __future__ import annotations

from scanline.model.decoders.base import Slots
from scanline.model.decoders.native import NativeDecoder
from tests.conftest import random_network, tiny_config
from tests.device.time_prefill import seconds_for_known, time_network

CONFIG = tiny_config()


def test_known_pixels_are_prefilled_or_stepped_over() -> None:
    decoder, stepped = NativeDecoder(random_network(CONFIG).float(), 3, 1), list[int]()
    step = decoder.step

    def recorded(slots: Slots, n: int) -> None:
        stepped.append(n)
        step(slots, n)

    decoder.step = recorded  # type: ignore[method-assign]
    assert seconds_for_known(decoder, 2, 7, prefill=True) > 0
    assert not stepped
    assert seconds_for_known(decoder, 2, 7, prefill=False) > 0
    assert set(stepped) == {7}
    assert decoder.positions.tolist() == [7, 7, 0]
    assert decoder.min_prefill == 1


def test_a_line_per_number_of_images_and_known_pixels() -> None:
    lines = time_network(random_network(CONFIG).float(), "native", "tiny", 2)
    starts = [line.split(":")[0] for line in lines]
    assert starts == [
        f"tiny, {images} images with {known} known pixels"
        for images in (1, 2) for known in (1, 10)
    ]  # fmt: skip
