"""CPU detection: name, instruction sets (ISAs) to build for, and usable cores."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

from scanline.kernels.native.cgroup import cpu_quota


class Isa(NamedTuple):
    """An instruction set: compiler flags, and required CPU features by their Linux names."""

    machine: str  # architecture as in `uname -m`; empty for any
    flags: tuple[str, ...]
    features: frozenset[str]


_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_HAS_AVX2 = frozenset({"avx2", "fma"})
_HAS_AVX512 = _HAS_AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_HAS_VNNI = _HAS_AVX512 | {"avx512_vnni"}
_HAS_BF16 = _HAS_VNNI | {"avx512_bf16"}
_HAS_AMX = _HAS_BF16 | {"amx_tile", "amx_int8"}
ISAS: dict[str, Isa] = {  # best first
    "amx": Isa("x86_64", (*_BF16, "-mamx-tile", "-mamx-int8"), _HAS_AMX),
    "avx512bf16": Isa("x86_64", _BF16, _HAS_BF16),
    "avx512vnni": Isa("x86_64", _VNNI, _HAS_VNNI),
    "avx512": Isa("x86_64", _AVX512, _HAS_AVX512),
    "avxvnni": Isa("x86_64", (*_AVX2, "-mavxvnni"), _HAS_AVX2 | {"avx_vnni"}),
    "avx2": Isa("x86_64", _AVX2, _HAS_AVX2),
    "neonbf16": Isa("aarch64", ("-march=armv8.2-a+dotprod+bf16",), frozenset({"asimddp", "bf16"})),
    "neondot": Isa("aarch64", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
    # The architecture's baseline: NEON on Arm, and sdot on Macs.
    "portable": Isa("", (), frozenset()),
}


@functools.cache
def cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's name and features. Features are empty if the system does not report them."""
    name, features = platform.processor() or platform.machine(), frozenset[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return name, _apple_features()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):  # x86, Arm
            features = frozenset(value.split())
    if "amx_tile" in features and not _enable_amx():
        features = frozenset(feature for feature in features if not feature.startswith("amx_"))
    return name, features


def _enable_amx() -> bool:
    """Request AMX for all threads of this process; return False if Linux refuses."""
    ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
    answer: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return answer == 0


def _apple_features() -> frozenset[str]:
    """Return an Apple CPU's relevant features by their Linux names."""
    try:
        output = subprocess.run(
            ["sysctl", "hw.optional.arm"], capture_output=True, text=True, check=False, timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    names = {"FEAT_DotProd": "asimddp", "FEAT_BF16": "bf16"}
    return frozenset(
        linux for apple, linux in names.items() if f"hw.optional.arm.{apple}: 1" in output
    )


def machine_isas(machine: str = "") -> list[str]:
    """Return the ISAs of an architecture, by default this CPU's, best first.

    This CPU may lack some of them.
    """
    machine = machine or platform.machine()
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return [name for name, isa in ISAS.items() if isa.machine in ("", machine)]


def cpu_isas() -> list[str]:
    """Return the ISAs that this CPU supports, best first."""
    # An x86 program translated by macOS sees the features of the Arm CPU.
    return [name for name in machine_isas() if ISAS[name].features <= cpu()[1]]


def usable_cores() -> int:
    """Return the number of physical cores this process may use, within its cgroup's CPU quota."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
    cores = set()
    for number in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            cores.add(topology.read_text())
        except OSError:
            cores.add(str(number))
    return max(1, int(min(len(cores), cpu_quota())))
