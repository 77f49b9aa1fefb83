"""How fast each kind of attention draws images: with its state, or anew from all pixels so far.

A step's time is measured at some positions of an image and summed over all by the trapezoidal rule:
it is even or grows evenly. What is timed is first checked to compute what the network does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from scanline.model.bench import cpu as bench
from scanline.model.bench.peer import Peer
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.paper import peers
from scanline.model.paper.report import Row, clock

# Every way to draw, by the paper's name of it, and two more of linear attention.
STATEFUL = {"linear": "linear", "stateful-softmax": "softmax"}
RECOMPUTED = {"softmax": "softmax", "lsh-1": "lsh-1", "lsh-4": "lsh-4"}
NATIVE, PEER = "linear, Scanline's C++", f"linear, {peers.NAME}"


def sampling_methods(device: torch.device) -> list[str]:
    """Name all that can draw on this device, the peer where it is installed."""
    found = [*RECOMPUTED, *STATEFUL]
    if device.type == "cpu":
        found += [NATIVE, *([PEER] if peers.installed() else [])]
    return found


def label(row: Row) -> str:
    """Give the name of a row's way to draw, and what it multiplies in if the row says so."""
    return f"{row['way']} ({row['precision']})" if "precision" in row else str(row["way"])


def timing_note(s: Row) -> str:
    """Say how rows of such settings were timed."""
    return (
        "`softmax` and `lsh` run the whole network again for every step, the others keep a state; "
        f"a step is timed at {s['positions']} positions of an image and summed over all."
    )


def precision_note(rows: dict[str, Row]) -> str:
    """Say what the C++ computed products in, which no row beside it does."""
    named = sorted({row["precision"] for row in rows.values() if "precision" in row})
    if not named:
        return ""
    return (
        f" Products of `{NATIVE}` are {' or '.join(named)} and its states float32; the other ways "
        "draw in float32 alone."
    )


class Sampler(ABC):
    """Draws images side by side, one step of each after another."""

    @abstractmethod
    def step(self, position: int) -> Tensor:
        """Draw one step at a position of all images; gives the head's parameters ``[B, P]``."""


class _Torch(Sampler):
    def __init__(self, network: LinearTransformer, batch: int) -> None:
        c, device = network.config, next(network.parameters()).device
        self.network, self.batch = network, batch
        self.canvas = torch.zeros(batch, c.pixels, c.channels, dtype=torch.uint8, device=device)
        self.noise = torch.rand(batch, c.step_draws, device=device)
        self.ones = torch.ones(batch, device=device)

    def draw(self, parameters: Tensor, position: int) -> Tensor:
        values = self.network.head.sample(parameters, self.noise, self.ones)
        first = position * self.network.config.step_channels
        self.canvas.flatten(1)[:, first : first + values.shape[1]] = values
        return parameters


class StatefulSampler(_Torch):
    """Each step from the state that the one before left."""

    def __init__(self, network: LinearTransformer, batch: int) -> None:
        super().__init__(network, batch)
        self.states = network.initial_state(batch)

    def step(self, position: int) -> Tensor:
        steps = torch.full((self.batch,), position, device=self.canvas.device)
        return self.draw(self.network.step(self.canvas, steps, self.states), position)


class RecomputingSampler(_Torch):
    """Each step by running the whole network over all steps so far, which keeps no state."""

    def step(self, position: int) -> Tensor:
        network = self.network
        steps = torch.arange(position + 1, device=self.canvas.device).expand(self.batch, -1)
        x = network.embed(self.canvas, steps, None)
        for block in network.blocks:
            x = block(x)
        return self.draw(network.head(network.norm(x[:, -1])), position)


class _Peer(Sampler):
    """The peer's own recurrent form; it takes one step after another, which all cost the same."""

    def __init__(self, network: LinearTransformer, batch: int) -> None:
        self.peer = Peer(network, batch)
        self.peer.check()
        self.peer.restart()

    def step(self, position: int) -> Tensor:
        self.peer.draw(1)
        return self.peer.parameters


def make_sampler(way: str, config: ModelConfig, batch: int, device: torch.device) -> Sampler:
    """Put together what draws a batch of images by a way of ``ways``, but for ``NATIVE``.

    The weights are random: speed does not depend on them.
    """
    if way == PEER:
        return _Peer(random_network("linear", config, device), batch)
    if way in STATEFUL:
        return StatefulSampler(random_network(STATEFUL[way], config, device), batch)
    return RecomputingSampler(random_network(RECOMPUTED[way], config, device), batch)


def random_network(kind: str, config: ModelConfig, device: torch.device) -> LinearTransformer:
    """Give a network of an attention kind with its first weights, always the same."""
    torch.manual_seed(0)
    config = ModelConfig.from_dict(config.to_dict() | {"attention": kind})
    return LinearTransformer(config).to(device).eval()


@torch.inference_mode()
def check(way: str, config: ModelConfig, device: torch.device, count: int = 4) -> None:
    """Raise ``RuntimeError`` unless a way's first steps are what ``forward`` gives.

    ``NATIVE`` may differ by what its precision costs, as in ``scanline bench``. Attention that sees
    what is later is compared with itself in a network of no more steps.
    """
    if way == PEER:  # it checks itself
        return
    if way == NATIVE:
        bench.check_decoder(random_network("linear", config, device), _open_native)
        return
    short = replace(config, height=1, width=-(-count // config.channels))
    drawer = make_sampler(way, short, 2, device)
    assert isinstance(drawer, _Torch)
    parameters = torch.stack([drawer.step(position) for position in range(short.steps)], 1)
    expected = drawer.network(drawer.canvas)
    last = slice(None) if drawer.network.config.supports_decoding else slice(-1, None)
    if not torch.allclose(parameters[:, last], expected[:, last], rtol=1e-3, atol=1e-4):
        raise RuntimeError(f"{way} gives other parameters than its network: not timed")


@torch.inference_mode()
def time_sampling(
    way: str, config: ModelConfig, batch: int, positions: int, device: torch.device
) -> Row:
    """Time drawing a batch of images: ``images_per_second``, and ``seconds`` of the batch.

    ``positions`` is at how many positions a step is timed. ``NATIVE`` has its ``precision`` too,
    what products are computed in; all else is float32. Raises ``RuntimeError`` where the way does
    not compute what its network does.
    """
    check(way, config, device)
    named: Row = {}
    if way == NATIVE:
        decoder = _open_native(random_network("linear", config, device), batch)
        seconds, named = _time_native(decoder), {"precision": decoder.precision}
    else:
        drawer = make_sampler(way, config, batch, device)
        drawer.step(0)
        places = np.unique(np.linspace(0, config.steps - 1, positions).round().astype(int))
        times = [_time_step(drawer, place, device) for place in places.tolist()]
        seconds = float(np.trapezoid(times, places)) + (times[0] + times[-1]) / 2
    return {
        "way": way, "batch": batch, "seconds": seconds, "images_per_second": batch / seconds,
        "device": device.type,
    } | named  # fmt: skip


def _time_step(drawer: Sampler, position: int, device: torch.device, least: float = 0.02) -> float:
    """Give the seconds of a step at a position: the best of three runs of ``least`` seconds."""
    began = clock(device)
    drawer.step(position)
    once = clock(device) - began
    if once > 10 * least:
        return once
    times, count = [], max(1, int(least / max(once, 1e-6)))
    for _ in range(3):
        began = clock(device)
        for _ in range(count):
            drawer.step(position)
        times.append((clock(device) - began) / count)
    return min(times)


def _open_native(network: LinearTransformer, slots: int) -> Decoder:
    return create_decoder(network, slots, "native", torch.get_num_threads())


def _time_native(decoder: Decoder, pixels: int = 16) -> float:
    device = torch.device("cpu")
    slots = bench.start_blank_images(decoder)
    decoder.step(slots, 1)
    times = []
    for _ in range(3):
        began = clock(device)
        decoder.step(slots, pixels)
        times.append((clock(device) - began) / pixels)
    return min(times) * decoder.config.pixels
