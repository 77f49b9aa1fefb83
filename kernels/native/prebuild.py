"""Builds of the native code in advance, so that it runs without a compiler.

``python -m scanline.kernels.native.prebuild`` compiles all sources for all ISAs of this machine's
architecture into this package. With the arguments ``MACHINE FOLDER`` it compiles for ``x86_64`` or
``aarch64`` into another folder; ``CXX`` may then be a cross-compiler. ``setup.py`` calls it so for
the wheels of a release.
"""

from __future__ import annotations

import platform
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scanline.kernels.native.build import (
    DECODER,
    PREBUILT,
    TRAINING,
    NativeBuildError,
    compile_library,
    find_compiler,
    prebuilt_name,
    run_compiler,
)
from scanline.kernels.native.cpu import machine_isas, usable_cores


def prebuild(machine: str, folder: Path) -> list[Path]:
    """Compile all sources for all ISAs of an architecture, and return the files.

    Raises:
        NativeBuildError: The compiler is missing, fails, or compiles for another architecture.
    """
    compiler = find_compiler()
    target = run_compiler([*compiler, "-dumpmachine"]).strip()
    if not (target.startswith(f"{machine}-") and "linux" in target):
        raise NativeBuildError(
            f"{shlex.join(compiler)} compiles for {target}: set CXX to a compiler for Linux on "
            f"{machine}"
        )
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(isa: str, source: Path) -> Path:
        path = folder / prebuilt_name(isa, source)
        compile_library(compiler, isa, source, path, "-s", to_load=False)  # -s: no symbols
        return path

    jobs = [(isa, source) for source in (DECODER, TRAINING) for isa in machine_isas(machine)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(compile_one, *zip(*jobs, strict=True)))


if __name__ == "__main__":
    arguments = sys.argv[1:] or [platform.machine(), str(PREBUILT)]
    for built in prebuild(arguments[0], Path(arguments[1])):
        print(built)  # noqa: T201
