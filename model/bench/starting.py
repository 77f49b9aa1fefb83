"""Which ways of starting kernels work on a device, tried one by one before all else is.

``python -m scanline.model.bench.starting`` prints a line for each, and exits 1 unless all draw the
same bytes: then at least it is known which does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from scanline.model.config import PRESETS
from scanline.model.decoders.contract import Inputs
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer

IMAGES = 4
# The first is the plainest, which the others are compared with; the last is what a server does.
WAYS: Mapping[str, Callable[..., TritonDecoder]] = {
    "from the host, one after another": lambda *of: TritonDecoder(*of, graphs=False, overlap=False),
    "from the host, overlapping": lambda *of: TritonDecoder(*of, graphs=False),
    "in graphs, one after another": lambda *of: TritonDecoder(*of, overlap=False),
    "in graphs, overlapping": lambda *of: TritonDecoder(*of),
}


def try_ways(
    network: LinearTransformer, ways: Mapping[str, Callable[..., TritonDecoder]] = WAYS
) -> Iterator[tuple[str, bool]]:
    """Draw the same images in each way; give a line of it, and whether the bytes are the same."""
    slots, first = np.arange(IMAGES, dtype=np.int32), None
    for name, opened in ways.items():
        try:
            decoder = opened(network, IMAGES)
            decoder.begin(slots, Inputs.blank(network.config, IMAGES))
            decoder.step(slots, network.config.pixels)
        except Exception as error:  # whatever it is, the other ways are to be tried
            yield f"{name}: {type(error).__name__}: {error}", False
            continue
        drawn = decoder.canvas.tobytes(), decoder.bits.tobytes()
        first = first or drawn
        free = decoder.device.free
        room = "" if free is None else f", {free / 1e9:.1f} GB free"
        yield f"{name}: {'the same' if drawn == first else 'OTHER'} bytes{room}", drawn == first


def main() -> None:
    """Try every way with a small network of the paper's kind, of random weights."""
    torch.manual_seed(0)
    config = replace(PRESETS["mnist-paper"], height=4, width=8, n_layers=2)
    good = True
    for line, same in try_ways(LinearTransformer(config).eval()):
        print(line, flush=True)  # noqa: T201
        good = good and same
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
