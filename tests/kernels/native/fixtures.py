"""Helpers of the native decoder's tests: odd sizes, traces and float64 references."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.kernels.native.abi import Precision
from scanline.kernels.native.cpu import cpu_isas, machine_isas
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import isa_params, parametrize_partly_broad, tiny_config
from tests.model.decoders.fixtures import LAYERS, network_for

TINY = LinearTransformer(tiny_config())
KINDS = {name: config for name, config in LAYERS.items() if not NativeDecoder.unsupported(config)}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
# ISAs whose products a header of this folder computes in plain C++, and the ISA that runs the rest.
EMULATED = {"avxvnni": "avx2", "amx": "avx512vnni"}


def use_emulation(
    isa: str, folder: Path, monkeypatch: pytest.MonkeyPatch, level: str = "-O1"
) -> None:
    """Compile ``EMULATED[isa]`` as ``isa``, whose products are emulated.

    Args:
        isa: The ISA that the CPU lacks. Open decoders with ``EMULATED[isa]``.
        folder: The cache of builds. Another is needed because the header is no part of their key.
        level: The compiler's optimisation level.
    """
    header = Path(__file__).with_name(f"{isa}.h")
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    monkeypatch.setenv("SCANLINE_CXXFLAGS", f"-include {header} {level}")


def on_isas(
    names: str, cases: Mapping[str, object], on_others: Collection[str]
) -> pytest.MarkDecorator:
    """Parametrize ``names`` with the cases; on ISAs but this CPU's best, most of them are broad.

    Args:
        names: The names of the parameters, with commas.
        cases: A value, or a tuple of values, by the name of the case.
        on_others: The cases that are not broad on other ISAs.
    """
    return parametrize_partly_broad(
        "isa", isa_params(machine_isas()), names, cases,
        lambda isa, case: isa != cpu_isas()[0] and case not in on_others,
    )  # fmt: skip


def trace(
    decoder: NativeDecoder, inputs: InputBatch
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Decide all pixels; return every step's head parameters, and the bits."""
    slots = np.arange(len(inputs.canvas), dtype=np.int32)
    parameters = decoder.trace()
    decoder.begin(slots.tolist(), inputs)
    decoder.step(slots, decoder.config.pixels)
    return parameters[slots, int(decoder.config.start == "given") :], decoder.bits[slots]


# The dtype whose tolerances apply to a precision.
DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32, "bf16": torch.bfloat16, "int16": torch.int16, "int8": torch.int8,
    "int10": torch.int8,
}  # fmt: skip
# Maximum error of parameters relative to float64, as a fraction of the largest parameter.
ERRORS: dict[Precision, float] = {
    "float32": 1e-5, "bf16": 3e-2, "int16": 2e-3, "int8": 5e-2, "int10": 2e-2,
}  # fmt: skip


ODD_SIZES = {
    "heads of 8": tiny_config(n_heads=3, d_model=24, d_ff=37),
    "heads of 12": tiny_config(n_heads=5, d_model=60, d_ff=100, encoding="linear"),
    "heads of 20": tiny_config(n_heads=2, d_model=40, d_ff=1, norm="post", activation="relu"),
    "heads of 31": tiny_config(n_heads=3, d_model=93, d_ff=65, head="logistic_mixture"),
    "heads of 33": tiny_config(
        n_heads=1, d_model=33, d_ff=31, channels=3, encoding="linear", head="logistic_mixture"
    ),
    "heads of 1": tiny_config(n_heads=7, d_model=7, d_ff=3, height=1, width=1),
    "wide": tiny_config(n_heads=2, d_model=256, d_ff=130, height=2, width=9),
}


def float64_outputs(
    config: ModelConfig, canvas: NDArray[np.uint8], inputs: InputBatch
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the head parameters and bits of a config's network in float64."""
    return float64_outputs_of(network_for(config), canvas, inputs)


def float64_outputs_of(
    network: LinearTransformer, canvas: NDArray[np.uint8], inputs: InputBatch
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the head parameters and bits of a network in float64."""
    network = deepcopy(network).double()
    labels = torch.from_numpy(inputs.label).long()
    with torch.no_grad():
        parameters = network(torch.from_numpy(canvas), labels)
        bits = network.bits_from(parameters, torch.from_numpy(canvas))
    return parameters.numpy(), bits.numpy()


STRICT = "-Wall -Wextra -Wpedantic -Werror -Wno-unused-command-line-argument"


def compilations(compiler: Path) -> int:
    """Return the number of compilations of the fake compiler."""
    log = compiler.with_name(f"{compiler.name}.log")
    return len(log.read_text().splitlines())
