"""Program that draws with networks of many sizes, run with sanitizers by ``test_build.py``."""

from __future__ import annotations

import itertools

import numpy as np

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.kernels.native.cpu import cpu_isas
from scanline.model.decoders.native import NativeDecoder
from tests.kernels.native.fixtures import KINDS, ODD_SIZES
from tests.kernels.native.test_value_predictor import repetitive
from tests.model.decoders.fixtures import masked, network_for

NARROW = {"avx2", "portable"} & {*cpu_isas()}  # shorter vectors have other tails
NARROW_PRECISIONS: tuple[Precision, ...] = ("float32", "int8")


def draw_each_kind() -> None:
    for config in [*KINDS.values(), *list(ODD_SIZES.values())[::2]]:
        inputs = masked(config, 5)
        for precision in PRECISIONS:
            decoder = NativeDecoder(network_for(config), 7, 2, precision=precision)
            decoder.begin([6, 0, 3, 2, 1], inputs)
            decoder.step([0], 2)
            decoder.step([6, 0, -1, 3, 2, 1], config.pixels)
            assert (decoder.positions[[6, 0, 3, 2, 1]] == config.pixels).all()
        for isa, precision in itertools.product(NARROW, NARROW_PRECISIONS):
            decoder = NativeDecoder(network_for(config), 7, 2, precision=precision, isa=isa)
            decoder.begin([6, 0, 3, 2, 1], inputs)
            decoder.step([6, 0, 3, 2, 1], config.pixels)


def draw_guided_images() -> None:
    grey = KINDS["grey"]
    inputs, images = masked(grey, 61), np.arange(61, dtype=np.int32)
    inputs.guidance[:], inputs.twin[:], inputs.label[:] = 1.7, images + 61, 1
    # Parts whose borders are inside pairs.
    decoder = NativeDecoder(network_for(grey), 122, 2, team=1)
    decoder.begin(images, inputs)
    decoder.step(images, grey.pixels)
    assert (decoder.positions == grey.pixels).all()


def draw_predicted_values() -> None:
    for config in KINDS.values():
        network, inputs = repetitive(config)
        decoder = NativeDecoder(network, 2, 2)
        decoder.begin([0, 1], inputs.select([0, 1]))
        decoder.step([0, 1], 9)
        decoder.step([1], network.config.pixels)


if __name__ == "__main__":
    draw_each_kind()
    draw_guided_images()
    draw_predicted_values()
    print("clean")
