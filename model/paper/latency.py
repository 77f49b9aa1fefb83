"""The supplement: seconds for a single image, on CPU and GPU, and images/s by the batch's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from scanline.model.config import PRESETS
from scanline.model.paper.drawing import ANEW, time_drawing, ways
from scanline.model.paper.report import Row

DATA = ("mnist", "cifar10")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """At how many positions a step is timed, and the batches of MNIST's network."""

    positions: int
    stateful_batches: tuple[int, ...]
    anew_batches: tuple[int, ...]


FULL = Sweep(positions=17, stateful_batches=(1, 4, 16, 64, 256), anew_batches=(1, 4, 16))
QUICK = Sweep(positions=3, stateful_batches=(1, 4, 16, 64), anew_batches=(1, 4))


def devices() -> list[torch.device]:
    """Give the CPU, and a CUDA device where there is one."""
    names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]


def rows(sweep: Sweep) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Give each row's key, ``DEVICE DATA WAY BATCH``, and what makes it."""
    for device in devices():
        for data in DATA:
            for way in ways(device):
                batches = sweep.anew_batches if way in ANEW else sweep.stateful_batches
                for batch in batches if data == "mnist" else batches[:1]:
                    config = PRESETS[f"{data}-paper"]
                    yield (
                        f"{device.type} {data} {way} {batch}",
                        partial(time_drawing, way, config, batch, sweep.positions, device),
                    )
