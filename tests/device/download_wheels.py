"""Download of the service's packages as wheels for another machine.

``python -m tests.device.download_wheels FOLDER`` needs pip and a network. The machine that the
wheels are for needs neither a network nor a compiler.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
# PyTorch must match the machine's driver, and Triton must match PyTorch.
ON_THE_MACHINE = ("torch", "triton")
# pip compares these tags literally; most wheels have one of them.
PLATFORMS = (
    "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)  # fmt: skip


def required_packages(pyproject: str, skip: Collection[str]) -> list[str]:
    """Return the requirements of a project, without those that are named in ``skip``.

    Raises:
        ValueError: A skipped package is not a requirement.
    """
    requirements: list[str] = tomllib.loads(pyproject)["project"]["dependencies"]
    by_name = {re.split(r"[^\w.-]", each)[0]: each for each in requirements}
    if unknown := sorted(set(skip) - set(by_name) - set(ON_THE_MACHINE)):
        raise ValueError(f"not required by the project: {', '.join(unknown)}")
    return [each for name, each in by_name.items() if name not in {*skip, *ON_THE_MACHINE}]


def pip_command(requirements: Collection[str], python: str, folder: Path) -> list[str]:
    """Return the command that downloads the wheels of packages and of all that they need."""
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
        "--implementation", "cp", "--python-version", python, *platforms,
        "--dest", str(folder), *requirements,
    ]  # fmt: skip


def main() -> None:
    """Download the wheels into an empty folder and print their number and size."""
    parser = argparse.ArgumentParser(prog="download_wheels", description=__doc__)
    parser.add_argument("folder", type=Path, help="new or empty folder for the wheels")
    parser.add_argument("--python", default="3.12", help="Python version of the machine")
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="NAME", help="packages that the machine has too"
    )
    options = parser.parse_args()
    folder: Path = options.folder
    if folder.is_dir() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: two versions of a package cannot be installed together")
    try:
        requirements = required_packages(PROJECT.read_text(), options.skip)
    except ValueError as error:
        sys.exit(str(error))
    if code := subprocess.run(pip_command(requirements, options.python, folder)).returncode:
        sys.exit(code)
    wheels = [*folder.glob("*.whl")]
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MiB, in {folder}")


if __name__ == "__main__":
    main()
