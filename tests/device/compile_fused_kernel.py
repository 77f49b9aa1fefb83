"""Compilation of the fused kernel for all networks that the checks draw with, on all cores.

``python -m tests.device.compile_fused_kernel FOLDER`` fills the cache that commands with
``SCANLINE_CACHE=FOLDER`` use. It needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.driver import CompileError, compile_cached
from scanline.kernels.cuda.fused.fused_decode import LAUNCH_CONFIGS, LaunchConfig, supported_configs
from scanline.model.checkpoint import SHIPPED_WEIGHTS, read_config
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.packing import decode_config_for
from tests.device.time_fused_kernel import VARIANTS

SHARED = 227 * 1024  # bytes of shared memory per block on an H100 or H200
TEST_HEIGHTS = (3, 1)  # of the networks of the kernel's tests, which have three layers
Job = tuple[str, dict[str, int | float]]  # source and macros


def networks() -> Iterator[ModelConfig]:
    """Yield the networks that the checks draw with, the most important first."""
    for path in sorted(SHIPPED_WEIGHTS.glob("*.safetensors")):
        yield read_config(path)
    yield from PRESETS.values()
    for height in TEST_HEIGHTS:
        yield from (replace(config, height=height, n_layers=3) for config in PRESETS.values())


def jobs(capability: tuple[int, int]) -> list[Job]:
    """List each source to compile once, with its macros."""
    found: dict[str, Job] = {}

    def add(config: ModelConfig, launch_configs: Sequence[LaunchConfig], text: str) -> None:
        decode_config = decode_config_for(config)
        if fused_decode.unsupported_reason(decode_config) is None:
            for launch in launch_configs:
                if supported_configs(decode_config, [launch], capability=capability, shared=SHARED):
                    job = text, fused_decode.defines(decode_config, launch)
                    found.setdefault(repr(job), job)

    for config in networks():
        add(config, LAUNCH_CONFIGS, fused_decode.source())
    for variant in VARIANTS:
        add(PRESETS["mnist-paper"], variant.launch_configs, variant.source())
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile everything that the folder lacks, and print the number of files."""
    parser = argparse.ArgumentParser(prog="compile_fused_kernel", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capability", default="9.0", help="compute capability of the device")
    options = parser.parse_args(arguments)
    os.environ["SCANLINE_CACHE"] = str(options.folder.resolve())
    major, minor = map(int, options.capability.split("."))

    def compile_one(job: Job) -> int:
        try:
            return len(compile_cached(job[0], "decode.cu", job[1], (major, minor)))
        except CompileError as error:  # of a variant: the others may be of use
            print(f"not compiled: {error}")
            return 0

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        sizes = list(threads.map(compile_one, jobs((major, minor))))
    print(f"{len(sizes)} kernels, {sum(sizes) / 1e6:.1f} MB, in {options.folder}")
    sys.exit(not all(sizes))


if __name__ == "__main__":
    main()
