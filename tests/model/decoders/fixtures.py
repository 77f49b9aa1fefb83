"""Small networks, inputs and helpers for decoder tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from scanline.model.noise import image_noise
from tests.conftest import parametrize_partly_broad, random_network, tiny_config

if TYPE_CHECKING:
    from scanline.model.decoders.triton import TritonDecoder

BACKENDS = ("reference", "native", pytest.param("triton", marks=pytest.mark.gpu))
# Tolerance of bits compared with the network: the coarsest default precision of each backend. The
# default of native depends on the CPU.
PRECISION = {"reference": torch.float32, "native": torch.bfloat16, "triton": torch.bfloat16}


def on_backends(
    names: str, cases: Mapping[str, object], on_reference: Collection[str]
) -> pytest.MarkDecorator:
    """Parametrize ``names`` with the cases; on the slow reference, most of them are broad.

    Args:
        names: The names of the parameters, with commas.
        cases: A value, or a tuple of values, by the name of the case.
        on_reference: The cases that are not broad on the reference.
    """
    return parametrize_partly_broad(
        "backend", BACKENDS, names, cases,
        lambda backend, case: backend == "reference" and case not in on_reference,
    )  # fmt: skip


GREY = tiny_config(classes=("cat", "dog"))
RGB = tiny_config(channels=3, head="logistic_mixture", encoding="linear", short_conv="2x3")
PAPER = tiny_config(
    input="previous", order="subpixel", channels=3, head="logistic_mixture", norm="post",
    activation="relu", positions="sinusoidal",
)  # fmt: skip
SUBPIXEL = tiny_config(
    channels=3, order="subpixel", norm="post", positions="sinusoidal", classes=("cat", "dog")
)
# Networks that every backend draws.
KINDS = {"grey": GREY, "rgb": RGB, "paper": PAPER, "subpixel": SUBPIXEL}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
# Also networks with options that a compiled backend may not support.
LAYERS = KINDS | {
    "softmax": dataclasses.replace(GREY, attention="softmax"),
    "lsh": dataclasses.replace(
        GREY, attention="lsh-4"
    ),  # no state, and one chunk, so exactly causal
}
every_layer = pytest.mark.parametrize("config", LAYERS.values(), ids=LAYERS.keys())
# On the reference: without a convolution and with one, with a state that grows and without a state.
different_layers = on_backends("config", LAYERS, ("grey", "rgb", "softmax", "lsh"))


def network_for(config: ModelConfig) -> LinearTransformer:
    return random_network(config, dtype=torch.float32)


def blank(config: ModelConfig, count: int, seed: int = 0) -> InputBatch:
    """Return inputs of ``count`` unknown images, with neutral sampling options.

    They have different seeds. The labels are those of the config in turn, beginning with none.
    """
    T, C = config.pixels, config.channels
    inputs = InputBatch.empty(config, count)
    inputs.canvas[:] = np.random.default_rng(seed).integers(0, 256, (count, T, C), np.uint8)
    inputs.seed[:] = np.arange(seed, seed + count)
    inputs.label[:] = np.arange(count) % (len(config.classes) + 1) - 1
    return inputs


def masked(config: ModelConfig, count: int, seed: int = 0) -> InputBatch:
    """Return inputs with about a third of the pixels known at random, including a prefix."""
    inputs = blank(config, count, seed)
    generator = np.random.default_rng(seed + 1)
    inputs.known[:] = generator.random(inputs.known.shape) < 0.3
    for row in range(count):
        inputs.known[row, : row % 4] = True
    inputs.temperature[:] = generator.choice([0.0, 0.7, 1.0, 1.3], count)
    return inputs


def begin_after_known_prefix(decoder: Decoder, slots: Sequence[int], inputs: InputBatch) -> None:
    """Begin images and step each to its first unknown pixel if the backend has no prefill."""
    decoder.begin(slots, inputs)
    lengths = inputs.prefix_lengths - decoder.prefill_lengths(inputs)
    for length in np.unique(lengths):
        decoder.step(np.asarray(slots, np.int32)[lengths == length], int(length))


def draw(
    network: LinearTransformer, backend: str, inputs: InputBatch
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw the images together, one slot each; return their pixels and bits."""
    slots = np.arange(len(inputs.canvas), dtype=np.int32)
    decoder = create_decoder(network, len(slots), backend)
    decoder.begin(slots.tolist(), inputs)
    decoder.step(slots, network.config.pixels)
    assert (decoder.positions == network.config.pixels).all()
    return decoder.canvas.copy(), decoder.bits.copy()


def draw_at_random_times(
    decoder: Decoder, inputs: InputBatch, generator: np.random.Generator,
    arrivals: Sequence[int] = (0, 1, 2), most_pixels: int = 5,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Draw images that begin in random slots, among others, and are stepped in random order.

    Args:
        decoder: A decoder with any number of slots.
        inputs: The images.
        generator: The source of all random choices.
        arrivals: Numbers of images to begin before a step.
        most_pixels: The largest number of pixels per step.

    Yields:
        The number of each finished image, and its slot, which is used again afterwards.
    """
    waiting, running = list(range(len(inputs.canvas))), dict[int, int]()
    while waiting or running:
        free = [slot for slot in range(decoder.max_slots) if slot not in running]
        arriving = min(int(generator.choice(arrivals)), len(free), len(waiting))
        if arriving := max(arriving, int(not running)):
            slots = [int(slot) for slot in generator.permutation(free)[:arriving]]
            images = [waiting.pop() for _ in slots]
            decoder.begin(slots, inputs.select(images))
            running |= dict(zip(slots, images, strict=True))
        pixels = int(generator.integers(1, most_pixels + 1))
        reached = np.minimum(decoder.scheduled_positions + pixels, decoder.config.pixels)
        decoder.step(generator.permutation([*running, -1]).astype(np.int32), pixels)
        for slot in list(running):
            assert decoder.positions[slot] == reached[slot]
            if reached[slot] == decoder.config.pixels:
                yield running.pop(slot), slot


def network_bits(
    network: LinearTransformer, canvas: NDArray[np.uint8], inputs: InputBatch
) -> NDArray[np.float32]:
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(canvas), torch.from_numpy(inputs.label).long())
    result: NDArray[np.float32] = bits.numpy()
    return result


def state_of(decoder: Decoder) -> list[NDArray[np.float32]]:
    """Return views of all state of a backend, slots first, to overwrite and to compare."""
    if isinstance(decoder, ReferenceDecoder):
        return [tensor.numpy() for state in decoder.states for tensor in state.values()]
    if isinstance(decoder, NativeDecoder):
        return [decoder.states]
    from scanline.model.decoders.triton import TritonDecoder

    assert isinstance(decoder, TritonDecoder)
    return attention_sums(decoder)  # copies; tests/triton checks the device's own arrays


def attention_sums(decoder: TritonDecoder) -> list[NDArray[np.float32]]:
    """Return copies of the attention sums of every slot, with the pending entries added.

    In float32 on a device they may differ from the kernel's sums by an ulp, because the kernel adds
    with FMA.

    Returns:
        S (eq. 18) ``[N, L, H, K, V]`` and z (eq. 19) ``[N, L, H, K]``.
    """
    s = decoder._decode_config
    with decoder.device.activate():
        kv, z, pending = (decoder.buffers[name].float().cpu() for name in ("kv", "z", "pending"))
    scheduled = decoder.scheduled_positions
    steps = torch.from_numpy(np.maximum(scheduled * s.steps_per_pixel - s.first_step, 0))
    for i in range(s.write_interval - 1):
        exists = (steps % s.write_interval > i).view(1, -1, 1, 1)
        keys, values = (torch.where(exists, pending[..., i, j, :], 0) for j in (0, 1))
        kv = kv + keys.unsqueeze(-1) * values.unsqueeze(-2)
        z = z + keys
    return [sums.transpose(0, 1).numpy() for sums in (kv, z)]


def noise_of(inputs: InputBatch, config: ModelConfig) -> NDArray[np.float32]:
    """Return the uniforms of each image: ``[S, T, draws]``."""
    names = zip(inputs.seed.tolist(), inputs.particle.tolist(), strict=True)
    return np.stack([image_noise(seed, config.pixels, config.draws, i) for seed, i in names])


def scatter_seeds(inputs: InputBatch) -> None:
    """Set seeds and particles with bits in all positions."""
    count = np.arange(1, len(inputs.seed) + 1, dtype=np.uint64)
    inputs.seed[:] = count * np.uint64(0x9E3779B97F4A7C15)
    inputs.particle[:] = count << np.uint64(31)
