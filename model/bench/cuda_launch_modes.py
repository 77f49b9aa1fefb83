"""Check of the launch modes of the CUDA kernels on a device.

``python -m scanline.model.bench.cuda_launch_modes`` prints a line per mode. The exit code is 0 if
all modes of the Triton kernels draw the same bytes and the fused kernel draws, 3 if the server's
mode of the Triton kernels fails, and 1 otherwise. The fused kernel rounds differently and so draws
other images; ``scanline bench`` compares it with the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from scanline.model.config import PRESETS
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer

IMAGES = 4
SERVER_MODE_FAILED = 3  # exit code
create_plain = partial(TritonDecoder, graphs=False, overlap=False)
# The others are compared with the first, which is the simplest. The last is the server's.
LAUNCH_MODES: Mapping[str, Callable[..., TritonDecoder]] = {
    "host launches, no overlap": create_plain,
    "host launches, overlap": partial(TritonDecoder, graphs=False),
    "graphs, no overlap": partial(TritonDecoder, overlap=False),
    "graphs, overlap": partial(TritonDecoder, fused=False),
}
FUSED: Mapping[str, Callable[..., TritonDecoder]] = {
    "Triton kernels": create_plain, "fused kernel": partial(TritonDecoder, fused=True),
}  # fmt: skip


def try_launch_modes(
    network: LinearTransformer, modes: Mapping[str, Callable[..., TritonDecoder]] = LAUNCH_MODES,
    min_equal: float = 1.0,
) -> Iterator[tuple[str, bool]]:  # fmt: skip
    """Draw the same images in each mode and compare them with the first mode's.

    Args:
        network: The network to draw with.
        modes: Decoder factories by name.
        min_equal: Minimum share of equal bytes; bits are compared only if it is 1.

    Yields:
        A line of text about the mode, and whether it succeeded.
    """
    slots, first = np.arange(IMAGES, dtype=np.int32), None
    for name, factory in modes.items():
        try:
            decoder = factory(network, IMAGES)
            decoder.begin(slots, InputBatch.empty(network.config, IMAGES))
            decoder.step(slots, network.config.pixels)
        except Exception as error:  # try the other modes after any error
            yield f"{name}: {type(error).__name__}: {error}", False
            continue
        drawn = decoder.canvas.copy(), decoder.bits.copy()
        first = first or drawn
        share = float(np.mean([np.mean(x == y) for x, y in zip(drawn, first, strict=True)]))
        if min_equal < 1:
            share = float(np.mean(drawn[0] == first[0]))
        free = decoder.device.free
        memory = "" if free is None else f", {free / 1e9:.1f} GB free"
        same = "same bytes" if share == 1 else f"{share:.1%} of the bytes are equal"
        yield f"{name}: {same}{memory}", share >= min_equal


def main() -> None:
    """Check every mode with a small random network of the paper's architecture."""
    torch.manual_seed(0)
    config = replace(PRESETS["mnist-paper"], height=4, width=8, n_layers=2)
    network, results = LinearTransformer(config).eval(), list[list[bool]]()
    for modes, min_equal in ((LAUNCH_MODES, 1.0), (FUSED, 0.0)):
        results.append([])
        for line, succeeded in try_launch_modes(network, modes, min_equal):
            print(line, flush=True)  # noqa: T201
            results[-1].append(succeeded)
    if not results[0][-1]:
        sys.exit(SERVER_MODE_FAILED)
    sys.exit(0 if all(map(all, results)) else 1)


if __name__ == "__main__":
    main()
