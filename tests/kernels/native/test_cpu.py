"""CPU detection from each system's information."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.kernels.native import cpu as native_cpu

LINUX_X86 = "model name\t: Some Xeon\nflags\t\t: fpu sse2 avx2 fma {}\n"
LINUX_ARM = "processor\t: 0\nFeatures\t: fp asimd {}\nCPU part\t: 0xd40\n"
APPLE = "#!/bin/sh\n[ $1 = hw.optional.arm ] && printf 'hw.optional.arm.FEAT_{}\\n'\n"


def features(monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None) -> frozenset[str]:
    """Return the features detected from ``/proc/cpuinfo``'s content; None if it is missing."""

    def read(path: Path) -> str:
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        found: tuple[str, frozenset[str]] = native_cpu.cpu.__wrapped__()
    monkeypatch.setattr(native_cpu, "cpu", lambda: found)
    return found[1]


@pytest.mark.parametrize(
    ("cpuinfo", "isas"),
    [
        (LINUX_X86.format(""), ["avx2", "portable"]),
        (LINUX_X86.format("avx_vnni"), ["avxvnni", "avx2", "portable"]),
        (LINUX_ARM.format("asimddp bf16"), ["neonbf16", "neondot", "portable"]),
        (LINUX_ARM.format("asimddp"), ["neondot", "portable"]),
        (LINUX_ARM.format("crc32"), ["portable"]),
    ],
)
def test_linux_features(cpuinfo: str, isas: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "platform.machine", lambda: "aarch64" if "Features" in cpuinfo else "x86_64"
    )
    assert features(monkeypatch, cpuinfo)
    assert native_cpu.cpu_isas() == isas


# All features that the AMX build requires.
AMX = "avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"


@pytest.mark.parametrize(("answer", "best"), [(0, "amx"), (-1, "avx512bf16")])
def test_amx_requires_permission_from_linux(
    answer: int, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel or a container may refuse AMX although the CPU has it."""
    asked: list[tuple[int, ...]] = []

    class Process:
        @staticmethod
        def syscall(*arguments: int) -> int:
            asked.append(arguments)
            return answer

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("ctypes.CDLL", lambda name: Process)
    features(monkeypatch, LINUX_X86.format(AMX))
    assert native_cpu.cpu_isas()[0] == best
    assert asked == [(158, 0x1023, 18)]


@pytest.mark.parametrize(
    ("output", "isas"),
    [
        ("BF16: 1\\nhw.optional.arm.FEAT_DotProd: 1", ["neonbf16", "neondot", "portable"]),
        ("BF16: 0\\nhw.optional.arm.FEAT_DotProd: 1", ["neondot", "portable"]),
        ("SME: 1", ["portable"]),
        (None, ["portable"]),
    ],
)
def test_macos_features(
    output: str | None, isas: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if output is not None:
        (tmp_path / "sysctl").write_text(APPLE.format(output))
        (tmp_path / "sysctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    features(monkeypatch, None)
    assert native_cpu.cpu_isas() == isas
    monkeypatch.setattr("platform.machine", lambda: "x86_64")  # an x86 program translated by macOS
    assert native_cpu.cpu_isas() == ["portable"]


@pytest.mark.parametrize(
    ("machine", "first", "count"), [("AMD64", "amx", 7), ("arm64", "neonbf16", 3)]
)
def test_isas_of_an_architecture(
    machine: str, first: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    isas = native_cpu.machine_isas()
    assert (isas[0], isas[-1], len(isas)) == (first, "portable", count)
