"""Build step of a wheel with compiled native code.

With ``SCANLINE_PREBUILT=x86_64`` or ``aarch64`` in the environment, a wheel for Linux on that
architecture contains the native code for all its instruction sets, compiled by ``CXX`` or the
system's compiler. Without it, nothing is compiled, and the wheel is for any platform.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MACHINE = os.environ.get("SCANLINE_PREBUILT", "")


class BuildWithLibraries(build_py):
    """Compile from the copied sources, whose hash is part of the libraries' names."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            root = Path(self.build_lib).absolute()
            command = [sys.executable, "-m", "scanline.kernels.native.prebuild", MACHINE]
            folder = root / "scanline" / "kernels" / "native" / "prebuilt"
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier build from this folder
            environment = os.environ | {"PYTHONPATH": str(root)}
            subprocess.run([*command, str(folder)], env=environment, check=True)


class LinuxWheel(bdist_wheel):
    """Wheel for any Python 3 on an architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", f"linux_{MACHINE}"


class PlatformDistribution(Distribution):
    """Distribution whose files belong to one platform."""

    def has_ext_modules(self) -> bool:
        return True


if MACHINE:
    setup(
        distclass=PlatformDistribution,
        cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": LinuxWheel},
    )
else:
    setup()
