"""Which ways of starting kernels work on a device, tried one by one before all else is.

``python -m scanline.model.bench.cuda_launch_modes`` prints a line for each, and exits 0 if all of
Triton's draw the same bytes and one kernel of all layers draws, 3 where what a server does with
Triton's kernels does not work, and else 1. Other roundings soon draw another image: how near the
one kernel is to the definition ``scanline bench`` checks.
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
SERVED_FAILS = 3  # the exit status where what a server does is what does not work
open_plain = partial(TritonDecoder, graphs=False, overlap=False)
# The first is the plainest, which the others are compared with; the last is what a server does.
LAUNCH_MODES: Mapping[str, Callable[..., TritonDecoder]] = {
    "from the host, one after another": open_plain,
    "from the host, overlapping": partial(TritonDecoder, graphs=False),
    "in graphs, one after another": partial(TritonDecoder, overlap=False),
    "in graphs, overlapping": partial(TritonDecoder, fused=False),
}
FUSED: Mapping[str, Callable[..., TritonDecoder]] = {
    "Triton's kernels": open_plain, "all layers as one kernel": partial(TritonDecoder, fused=True),
}  # fmt: skip


def try_launch_modes(
    network: LinearTransformer, ways: Mapping[str, Callable[..., TritonDecoder]] = LAUNCH_MODES,
    alike: float = 1.0,
) -> Iterator[tuple[str, bool]]:  # fmt: skip
    """Draw the same images in each way; give a line of it, and whether the bytes are the same.

    As many of the first way's as ``alike``, all by default and those of bits among them.
    """
    slots, first = np.arange(IMAGES, dtype=np.int32), None
    for name, opened in ways.items():
        try:
            decoder = opened(network, IMAGES)
            decoder.begin(slots, InputBatch.empty(network.config, IMAGES))
            decoder.step(slots, network.config.pixels)
        except Exception as error:  # whatever it is, the other ways are to be tried
            yield f"{name}: {type(error).__name__}: {error}", False
            continue
        drawn = decoder.canvas.copy(), decoder.bits.copy()
        first = first or drawn
        share = float(np.mean([np.mean(x == y) for x, y in zip(drawn, first, strict=True)]))
        if alike < 1:  # bits are those of other roundings
            share = float(np.mean(drawn[0] == first[0]))
        free = decoder.device.free
        room = "" if free is None else f", {free / 1e9:.1f} GB free"
        same = "the same bytes" if share == 1 else f"{share:.1%} of the bytes"
        yield f"{name}: {same}{room}", share >= alike


def main() -> None:
    """Try every way with a small network of the paper's kind, of random weights."""
    torch.manual_seed(0)
    config = replace(PRESETS["mnist-paper"], height=4, width=8, n_layers=2)
    network, works = LinearTransformer(config).eval(), list[list[bool]]()
    for ways, alike in ((LAUNCH_MODES, 1.0), (FUSED, 0.0)):
        works.append([])
        for line, same in try_launch_modes(network, ways, alike):
            print(line, flush=True)  # noqa: T201
            works[-1].append(same)
    sys.exit(SERVED_FAILS if not works[0][-1] else 0 if all(map(all, works)) else 1)


if __name__ == "__main__":
    main()
