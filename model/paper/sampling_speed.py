"""Sampling speed of each kind of attention, with a recurrent state or by recomputation.

A step is timed at some positions of an image and integrated over all of them by the trapezoidal
rule, because its time is constant or grows almost linearly. (The quadratic part of softmax makes
its time up to 3 % too long.) Each method is checked against the network before it is timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from scanline.model.bench.peer import Peer
from scanline.model.bench.timing import check_decoder, start_blank_images
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.paper import peers
from scanline.model.paper.kinds import attention_config
from scanline.model.paper.report import Row, clock, timings

# Sampling methods by the paper's names, with the attention each uses, and two more methods. Our
# `softmax` layer can keep a state too, but the paper's method `softmax` computes all steps again.
STATEFUL = {"linear": "linear", "stateful-softmax": "softmax"}
RECOMPUTED = {"softmax": "softmax", "lsh-1": "lsh-1", "lsh-4": "lsh-4"}
NATIVE, PEER = "linear-native", f"linear-{peers.NAME}"


def sampling_methods(device: str) -> list[str]:
    """List the sampling methods of ``cpu`` or ``cuda``."""
    return [*RECOMPUTED, *STATEFUL, *([NATIVE, PEER] if device == "cpu" else [])]


def implementation(method: str, precision: str | None) -> str:
    """Describe what runs a method."""
    if method == NATIVE:
        return f"Scanline's C++, {precision}"
    return "the authors' code" if method == PEER else "plain PyTorch"


class Sampler(ABC):
    """Sampler of a batch of images, step by step."""

    @abstractmethod
    def step(self, position: int) -> Tensor:
        """Sample one step of all images; return the head's parameters ``[B, P]``."""


class _Torch(Sampler):
    def __init__(self, network: LinearTransformer, batch: int) -> None:
        c, device = network.config, next(network.parameters()).device
        self.network, self.batch = network, batch
        self.canvas = torch.zeros(batch, c.pixels, c.channels, dtype=torch.uint8, device=device)
        self.noise = torch.rand(batch, c.step_draws, device=device)
        self.ones = torch.ones(batch, device=device)

    def write_values(self, parameters: Tensor, position: int) -> Tensor:
        values = self.network.head.sample(parameters, self.noise, self.ones)
        first = position * self.network.config.step_channels
        self.canvas.flatten(1)[:, first : first + values.shape[1]] = values
        return parameters


class StatefulSampler(_Torch):
    """Sampler that keeps a recurrent state."""

    def __init__(self, network: LinearTransformer, batch: int) -> None:
        super().__init__(network, batch)
        self.states = network.initial_state(batch)

    def step(self, position: int) -> Tensor:
        steps = torch.full((self.batch,), position, device=self.canvas.device)
        return self.write_values(self.network.step(self.canvas, steps, self.states), position)


class RecomputingSampler(_Torch):
    """Sampler without a state, which runs the network over all earlier steps in every step."""

    def step(self, position: int) -> Tensor:
        return self.write_values(self.network.recompute_step(self.canvas, position), position)


class _Peer(Sampler):
    """The peer's recurrent sampler; it ignores the position, because all steps cost the same."""

    def __init__(self, network: LinearTransformer, batch: int) -> None:
        self.peer = Peer(network, batch)

    def step(self, position: int) -> Tensor:
        self.peer.draw(1)
        return self.peer.parameters


def make_sampler(method: str, config: ModelConfig, batch: int, device: torch.device) -> Sampler:
    """Create the sampler of any method but ``NATIVE``.

    Its weights are random, because the speed does not depend on them.
    """
    if method == PEER:
        return _Peer(random_network("linear", config, device), batch)
    if method in STATEFUL:
        return StatefulSampler(random_network(STATEFUL[method], config, device), batch)
    return RecomputingSampler(random_network(RECOMPUTED[method], config, device), batch)


def random_network(kind: str, config: ModelConfig, device: torch.device) -> LinearTransformer:
    """Create a network with an attention kind and random weights with a fixed seed."""
    torch.manual_seed(0)
    config = ModelConfig.from_dict(config.to_dict() | attention_config(kind))
    return LinearTransformer(config).to(device).eval()


@torch.inference_mode()
def check(method: str, config: ModelConfig, device: torch.device, count: int = 4) -> None:
    """Raise ``RuntimeError`` unless the first steps of a method agree with ``forward``.

    ``NATIVE`` may differ by the error of its precision, as in ``scanline bench``. Attention whose
    output depends on later positions is compared in a network of ``count`` steps, at the last.
    """
    if method == PEER:
        Peer(random_network("linear", config, device), 2).check()
        return
    if method == NATIVE:
        check_decoder(random_network("linear", config, device), _open_native)
        return
    short = replace(config, height=1, width=-(-count // config.channels))
    sampler = make_sampler(method, short, 2, device)
    assert isinstance(sampler, _Torch)
    parameters = torch.stack([sampler.step(position) for position in range(short.steps)], 1)
    expected = sampler.network(sampler.canvas)
    last = slice(None) if sampler.network.config.has_state else slice(-1, None)
    if not torch.allclose(parameters[:, last], expected[:, last], rtol=1e-3, atol=1e-4):
        raise RuntimeError(
            f"{method} computes other parameters than its network, so it is not timed"
        )


@torch.inference_mode()
def time_sampling(
    method: str, config: ModelConfig, batch: int, positions: int, device: torch.device
) -> Row:
    """Time sampling a batch of images and return its row.

    The row has three timings ``seconds`` of the batch, and the ``implementation``.

    Args:
        method: One of ``sampling_methods``.
        config: Network, whose attention the method replaces.
        batch: Number of images.
        positions: Number of positions at which a step is timed.
        device: Device to sample on.

    Raises:
        RuntimeError: If the method does not compute what its network does.
    """
    check(method, config, device)
    precision: str | None = None
    if method == NATIVE:
        decoder = _open_native(random_network("linear", config, device), batch)
        seconds, precision = _time_native(decoder), decoder.precision
    else:
        sampler = make_sampler(method, config, batch, device)
        sampler.step(0)
        at = np.unique(np.linspace(0, config.steps - 1, positions).round().astype(int))
        times = np.array([timings(partial(sampler.step, p), device) for p in at.tolist()])
        ends = (times[0] + times[-1]) / 2
        seconds = (np.trapezoid(times, at, axis=0) + ends).tolist()
    return {
        "method": method, "batch": batch, "seconds": seconds, "device": device.type,
        "implementation": implementation(method, precision),
    }  # fmt: skip


def _open_native(network: LinearTransformer, slots: int) -> Decoder:
    return create_decoder(network, slots, "native", torch.get_num_threads())


def _time_native(decoder: Decoder, pixels: int = 16) -> list[float]:
    """Time some pixels of all images three times, and return the seconds of whole images."""
    device, times = torch.device("cpu"), []
    slots = start_blank_images(decoder)
    decoder.step(slots, 1)
    for _ in range(3):
        began = clock(device)
        decoder.step(slots, pixels)
        times.append((clock(device) - began) * decoder.config.pixels / pixels)
    return times
