"""Timings of known pixels on a device: prefilled in parallel, and stepped over.

``python -m tests.device.time_prefill`` prints a line per network and number of images. They show
whether ``MIN_PREFILL`` in ``model/decoders/triton.py`` is right: a pass over that many pixels of
one image should take about as long as steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from scanline.model.config import PRESETS
from scanline.model.decoders.base import Decoder, InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer

MODELS = ("mnist-paper", "cifar10")
REPEATS = 5


def seconds_for_known(decoder: Decoder, images: int, known: int, prefill: bool) -> float:
    """Return the median time until ``images`` images are at pixel ``known``.

    Args:
        decoder: A decoder with at least ``images`` slots.
        images: Number of images that begin together.
        known: Number of leading known pixels.
        prefill: Whether to prefill them instead of stepping over them.
    """
    inputs, slots = InputBatch.empty(decoder.config, images), np.arange(images, dtype=np.int32)
    inputs.known[:, :known] = True
    smallest = decoder.min_prefill
    if not prefill:
        decoder.min_prefill = math.inf
    took = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        decoder.begin(slots, inputs)
        decoder.synchronize()
        if left := known - int(decoder.positions[0]):
            decoder.step(slots, left)
        took.append(time.perf_counter() - began)
    decoder.min_prefill = smallest
    return float(np.median(took[1:]))  # the first may compile or allocate


def time_network(network: LinearTransformer, backend: str, name: str, slots: int) -> list[str]:
    """Return a line for one image and for ``slots`` images, with few and with many known pixels."""
    decoder = create_decoder(network, slots, backend)
    lines = []
    for images in (1, slots):
        for known in (int(decoder.min_prefill), network.config.pixels // 2):
            prefilled, stepped = (
                1e3 * seconds_for_known(decoder, images, known, prefill)
                for prefill in (True, False)
            )
            lines.append(
                f"{name}, {images} images with {known} known pixels: prefilled in "
                f"{prefilled:.2f} ms, stepped over in {stepped:.2f} ms"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all timings."""
    parser = argparse.ArgumentParser(prog="time_prefill", description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--backend", default="triton")
    options = parser.parse_args(arguments)
    for model in options.models:
        torch.manual_seed(0)
        network = LinearTransformer(PRESETS[model]).eval()
        for line in time_network(network, options.backend, model, options.slots):
            print(line, flush=True)


if __name__ == "__main__":
    main()
