"""The native decoder's NEON code, cross-compiled and run on an Arm CPU emulated by qemu."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.kernels.native import abi
from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.kernels.native.build import FLAGS
from scanline.kernels.native.cpu import ISAS
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import NO_SLOT, InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close
from tests.kernels.native import golden
from tests.kernels.native.fixtures import (
    DTYPES,
    ERRORS,
    KINDS,
    ODD_SIZES,
    STRICT,
    every_kind,
    float64_outputs,
)
from tests.model.decoders.fixtures import masked, network_for

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


# The ISA that a build reports, by the name of the ISA it is built for.
BUILT = {"portable": "neon", "neondot": "neondot", "neonbf16": "neonbf16"}


def compile_driver(isa: str, folder: Path, compiler: str, *flags: str) -> Path:
    """Compile the driver for an Arm ISA, and return its path; skip if the tools are missing."""
    for tool in (COMPILER, EMULATOR, compiler.split()[0]):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}: apt-get install g++-aarch64-linux-gnu qemu-user-static clang")
    path, source = folder / BUILT[isa], Path(__file__).with_name("driver.cpp")
    usual = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")] + [*ISAS[isa].flags]
    command = [*compiler.split(), *usual, *flags, "-static", str(source), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module", params=BUILT)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the driver for an Arm ISA with warnings as errors."""
    folder = tmp_path_factory.mktemp("arm")
    return compile_driver(request.param, folder, COMPILER, *STRICT.split())


class Captured:
    """Replaces ``DecoderHandle`` to record its arguments."""

    isa = "neon"

    def __init__(
        self,
        library: object,
        sizes: Mapping[str, int],
        weights: Mapping[str, NDArray[np.float32] | None],
        layers: Sequence[Mapping[str, NDArray[np.float32]]],
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self.sizes, self.weights, self.layers, self.arrays = sizes, weights, layers, arrays
        self.begun = b""

    def begin(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Record the slots and lengths."""
        self.begun = struct.pack("i", slots.size) + slots.tobytes() + lengths.tobytes()

    def file(self) -> bytes:
        """Return the driver's input file."""
        parts = [struct.pack("i", self.sizes[name]) for name, *_ in abi.Config._fields_]
        named = [name for name, *_ in abi.Weights._fields_ if name != "layers"]
        tensors = [self.weights[name] for name in named]
        for layer in self.layers:
            tensors += [layer.get(name) for name, *_ in abi.LayerWeights._fields_]
        for tensor in tensors:
            parts.append(struct.pack("q", -1 if tensor is None else tensor.size))
            parts.append(b"" if tensor is None else tensor.tobytes())
        parts.append(self.begun)
        parts += [self.arrays[name].tobytes() for name, *_ in abi.Arrays._fields_]
        return b"".join(parts)


def emulate(
    driver: Path, folder: Path, config: ModelConfig, inputs: InputBatch, precision: Precision,
    threads: int, speculate: bool = True, network: LinearTransformer | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
    """Draw all images in the emulator; return canvas, bits and every step's parameters."""
    count = len(inputs.canvas)
    slots = count + int((inputs.twin != NO_SLOT).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abi, "DecoderHandle", Captured)
        decoder = NativeDecoder(
            network or network_for(config), slots, threads, precision=precision,
            speculate=speculate,
        )  # fmt: skip
    decoder.begin(np.arange(count, dtype=np.int32), inputs)
    captured = decoder._native
    assert isinstance(captured, Captured)
    given, drawn = folder / "given", folder / "drawn"
    given.write_bytes(captured.file())
    done = subprocess.run(
        [EMULATOR, str(driver), str(given), str(drawn)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{driver.name}\n"
    data = drawn.read_bytes()
    sizes = np.cumsum([0, decoder.canvas.nbytes, decoder.bits.nbytes])
    canvas = np.frombuffer(data[: sizes[1]], np.uint8).reshape(decoder.canvas.shape).copy()
    bits = np.frombuffer(data[sizes[1] : sizes[2]], np.float32).reshape(decoder.bits.shape).copy()
    parameters = np.frombuffer(data[sizes[2] :], np.float32)
    return canvas, bits, parameters.reshape(slots, config.steps, config.head_outputs)


SOME = KINDS | {name: ODD_SIZES[name] for name in ("heads of 12", "heads of 31", "heads of 33")}


@pytest.mark.slow
@pytest.mark.parametrize("config", SOME.values(), ids=SOME.keys())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_neon_matches_float64(
    config: ModelConfig, precision: Precision, driver: Path, tmp_path: Path
) -> None:
    inputs = masked(config, 3, seed=1)
    canvas, bits, parameters = emulate(driver, tmp_path, config, inputs, precision, 2)
    expected, expected_bits = float64_outputs(config, canvas, inputs)
    parameters = parameters[:, int(config.start == "given") :]
    dtype = DTYPES[precision]
    assert np.abs(parameters - expected).max() <= ERRORS[precision] * np.abs(expected).max()
    assert_close(torch.from_numpy(bits), torch.from_numpy(expected_bits), dtype)


@every_kind
@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_do_not_depend_on_threads_and_batch(
    config: ModelConfig, precision: Precision, driver: Path, tmp_path: Path
) -> None:
    inputs = masked(config, 9, seed=3)
    together = emulate(driver, tmp_path, config, inputs, precision, 2)
    for threads, rows, speculate in ((1, [4], False), (2, [4], True), (1, list(range(9)), False)):
        some = emulate(driver, tmp_path, config, inputs.select(rows), precision, threads, speculate)
        assert some[0].tobytes() == together[0][rows].tobytes()
        assert some[1].tobytes() == together[1][rows].tobytes()
        assert some[2].tobytes() == together[2][rows].tobytes()


def check_golden(name: str, precision: Precision, driver: Path, folder: Path) -> None:
    network = golden.network_of(name)
    inputs = golden.golden_inputs(network.config)
    canvas, bits, _ = emulate(driver, folder, network.config, inputs, precision, 2, network=network)
    expected = golden.load_golden()[name][precision]
    found = {case: golden.digest(canvas[row], bits[row]) for row, case in enumerate(golden.CASES)}
    assert found == {case: expected[case] for case in golden.CASES}


@pytest.mark.parametrize("name", golden.CONFIGS)
@pytest.mark.parametrize("precision", golden.PRECISIONS)
def test_golden_pictures(name: str, precision: Precision, driver: Path, tmp_path: Path) -> None:
    """NEON draws the bytes of every other CPU. The driver has no particles."""
    check_golden(name, precision, driver, tmp_path)


@pytest.mark.broad
@pytest.mark.parametrize("level", ["-O2", "-O3"])
@pytest.mark.parametrize("compiler", [COMPILER, "clang++ --target=aarch64-linux-gnu"])
@pytest.mark.parametrize("isa", BUILT)
def test_golden_pictures_of_other_builds(
    isa: str, compiler: str, level: str, tmp_path: Path
) -> None:
    driver = compile_driver(isa, tmp_path, compiler, level)
    for name in golden.CONFIGS:
        for precision in golden.PRECISIONS:
            check_golden(name, precision, driver, tmp_path)
