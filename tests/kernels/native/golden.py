"""Golden pictures: hashes of pixels and bits that every build must reproduce on every CPU.

``python -m tests.kernels.native.golden`` adds new networks and cases to ``golden.json``, drawn with
this machine's best instruction set. Only if ``ARITHMETIC`` was raised, it draws all again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.kernels.native.abi import Precision
from scanline.model.checkpoint import SHIPPED_WEIGHTS, load_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import NO_SLOT, InputBatch
from scanline.model.decoders.native import ARITHMETIC, NativeDecoder
from scanline.model.network import LinearTransformer
from scanline.model.particles import run_particle_filters
from tests.conftest import tiny_config

FILE = Path(__file__).with_name("golden.json")
PRECISIONS: tuple[Precision, ...] = ("int16", "int8", "int10", "float32")
PARTICLES = 3
SHIPPED = ("mnist", "cifar10")
# The sizes of some heads, layers and outputs are no multiples of any vector's width.
CONFIGS = {
    "categorical grey": tiny_config(classes=("cat", "dog"), d_model=60, n_heads=5, d_ff=90),
    "categorical RGB": tiny_config(
        channels=3, order="subpixel", norm="post", classes=("cat", "dog"), positions="sinusoidal"
    ),
    "mixture grey": tiny_config(
        head="logistic_mixture", classes=("cat", "dog"), encoding="linear", d_model=64, n_heads=2
    ),
    "mixture RGB": tiny_config(
        channels=3, head="logistic_mixture", encoding="linear", short_conv="2x3",
        classes=("cat", "dog"), d_model=24, n_heads=3, d_ff=37,
    ),
    "sinusoidal RGB": tiny_config(
        input="previous", order="subpixel", channels=3, head="logistic_mixture", norm="post",
        activation="relu", positions="sinusoidal", classes=("cat", "dog"),
    ),
}  # fmt: skip
NAMES = (*CONFIGS, *SHIPPED)


@dataclass(frozen=True)
class Case:
    """Sampling options of one golden picture, and which of its pixels are known."""

    temperature: float = 1.0
    top_p: float = 1.0
    guidance: float = 1.0
    label: int = 1
    known: str = "none"


CASES = {
    "plain": Case(label=-1),
    "labelled": Case(),
    "greedy": Case(temperature=0.0),
    "hot": Case(temperature=1.7),
    "top-p": Case(top_p=0.8, temperature=0.9),
    "guided": Case(guidance=2.5),
    "guided top-p": Case(guidance=2.5, top_p=0.9),
    "prefilled": Case(known="prefix"),
    "completed": Case(known="scattered", guidance=1.5),
}


@cache
def network_of(name: str) -> LinearTransformer:
    """Return a shipped network, or a tiny one whose weights are the same on every machine."""
    if name in SHIPPED:
        return load_checkpoint(SHIPPED_WEIGHTS / f"{name}.safetensors").model
    network = LinearTransformer(CONFIGS[name]).eval()
    with torch.no_grad():
        for stream, (part, parameter) in enumerate(network.named_parameters()):
            # Philox's raw words, because PyTorch's random numbers depend on the CPU.
            words = np.random.Philox(key=stream).random_raw(parameter.numel())
            uniform = (words >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-22) - 1
            values = torch.from_numpy(uniform.reshape(parameter.shape))
            scale = 0.5 if parameter.ndim == 1 else 2.0 / np.sqrt(parameter.shape[-1])
            parameter.copy_(values * float(scale))
            if "norm" in part and part.endswith("weight"):
                parameter.add_(1)
    return network


def golden_inputs(config: ModelConfig) -> InputBatch:
    """Return one row per case. Twins have the slots after all cases."""
    inputs = InputBatch.empty(config, len(CASES))
    words = np.random.Philox(key=7).random_raw(inputs.canvas.size)
    inputs.canvas[:] = (words >> np.uint64(56)).astype(np.uint8).reshape(inputs.canvas.shape)
    twins = len(CASES)
    for row, case in enumerate(CASES.values()):
        inputs.seed[row] = 2**64 - 4 + row if row < 4 else row
        inputs.temperature[row], inputs.top_p[row] = case.temperature, case.top_p
        inputs.guidance[row], inputs.label[row] = case.guidance, case.label
        if case.guidance != 1:
            inputs.twin[row], twins = twins, twins + 1
        pixels = np.arange(config.pixels)
        inputs.known[row] = {
            "none": pixels < 0,
            "prefix": pixels < config.pixels * 2 // 3,
            "scattered": (pixels < config.width) | (pixels * 7 % 5 == 0),
        }[case.known]
    return inputs


def digest(canvas: NDArray[np.uint8], bits: NDArray[np.float32]) -> str:
    """Return a hash of one picture's pixels and bits."""
    return hashlib.sha256(canvas.tobytes() + bits.tobytes()).hexdigest()[:16]


def draw_golden(
    name: str, precision: Precision, isa: str | None, cases: Collection[str] = tuple(CASES)
) -> tuple[dict[str, str], str]:
    """Draw cases and particles with a network; return their hashes, and the ISA's name."""
    network, config = network_of(name), network_of(name).config
    inputs = golden_inputs(config)
    rows = np.array([row for row, case in enumerate(CASES) if case in cases], np.int32)
    guided = int((inputs.twin != NO_SLOT).sum())
    decoder = NativeDecoder(network, len(CASES) + guided, 2, precision=precision, isa=isa)
    decoder.begin(rows, inputs.select(rows))
    decoder.step(rows, config.pixels)
    assert (decoder.positions[rows] == config.pixels).all()
    found = {
        case: digest(decoder.canvas[row], decoder.bits[row])
        for row, case in enumerate(CASES)
        if case in cases
    }
    return found | {"particles": _draw_particles(network, precision, isa)}, decoder.isa


def _draw_particles(network: LinearTransformer, precision: Precision, isa: str | None) -> str:
    decoder = NativeDecoder(network, PARTICLES, 2, precision=precision, isa=isa)
    row = list(CASES).index("completed")
    inputs = golden_inputs(network.config).select([row])
    inputs.guidance[:], inputs.twin[:] = 1, NO_SLOT
    decoder.begin([0], inputs)
    (chosen,) = run_particle_filters(decoder, np.array([0]), inputs, PARTICLES)
    return digest(decoder.canvas[chosen], decoder.bits[chosen])


def load_golden() -> dict[str, dict[str, dict[str, str]]]:
    """Return the hashes by network, precision and case, of the current arithmetic."""
    loaded = json.loads(FILE.read_text())
    assert loaded["arithmetic"] == ARITHMETIC, "the golden pictures are of another arithmetic"
    hashes: dict[str, dict[str, dict[str, str]]] = loaded["hashes"]
    return hashes


def write_golden() -> Iterator[str]:
    """Draw the cases that the file lacks; raise ``ValueError`` if hashes in the file change.

    Yields:
        A line for each network and precision that was drawn.
    """
    loaded = json.loads(FILE.read_text())
    known = loaded["hashes"] if loaded["arithmetic"] == ARITHMETIC else {}
    hashes: dict[str, dict[str, dict[str, str]]] = {}
    for name in NAMES:
        hashes[name] = {}
        for precision in PRECISIONS:
            old = hashes[name][precision] = known.get(name, {}).get(precision, {})
            if old.keys() == {*CASES, "particles"}:
                continue
            drawn, isa = draw_golden(name, precision, None)
            if changed := [case for case in old.keys() & drawn if old[case] != drawn[case]]:
                raise ValueError(
                    f"{name}, {precision}: {sorted(changed)} changed; raise ARITHMETIC if that is "
                    "intended"
                )
            hashes[name][precision] = drawn
            yield f"{name}, {precision}: drawn with {isa}"
    FILE.write_text(json.dumps({"arithmetic": ARITHMETIC, "hashes": hashes}, indent=1) + "\n")


if __name__ == "__main__":
    for line in write_golden():
        print(line)
