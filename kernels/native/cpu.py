"""What the CPU is: its name, the instructions to build for, and the cores that we may use."""

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
    """Instructions to build for: the compiler's flags, and what Linux calls the features needed."""

    machine: str  # the kind of CPU that may have them, as `uname -m` says; any if empty
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
    "portable": Isa("", (), frozenset()),  # what all of a kind have: on Arm NEON, Macs sdot too
}


@functools.cache
def cpu() -> tuple[str, frozenset[str]]:
    """Give the CPU's name and its features, none where the system does not tell."""
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
    if "amx_tile" in features and not _may_use_tiles():
        features = frozenset(feature for feature in features if not feature.startswith("amx_"))
    return name, features


def _may_use_tiles() -> bool:
    """Ask Linux for AMX's tiles, which all threads of this process then have; it may refuse."""
    ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
    answer: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return answer == 0


def _apple_features() -> frozenset[str]:
    """Give an Apple Arm CPU's features that are of use here, as Linux would call them."""
    try:
        told = subprocess.run(
            ["sysctl", "hw.optional.arm"], capture_output=True, text=True, check=False, timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    names = {"FEAT_DotProd": "asimddp", "FEAT_BF16": "bf16"}
    return frozenset(
        linux for apple, linux in names.items() if f"hw.optional.arm.{apple}: 1" in told
    )


def machine_isas() -> list[str]:
    """Give the ISAs of this kind of CPU, best first; this very one may lack some."""
    kind = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return [name for name, isa in ISAS.items() if isa.machine in ("", kind)]


def cpu_isas() -> list[str]:
    """Give the ISAs that this CPU has, best first."""
    # An x86 program that a Mac translates is told of the Arm CPU beneath it.
    return [name for name in machine_isas() if ISAS[name].features <= cpu()[1]]


def usable_cores() -> int:
    """Count the physical cores that this process may use, within its groups' quota."""
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
