"""CPU and memory limits of containers and systemd units."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scanline.kernels.native import cgroup, cpu
from scanline.model.decoders import memory as decoder_memory

NESTED = "0::/system.slice/scanline.service\n"
VERSION_1 = "12:memory:/docker/9f\n4:cpu,cpuacct:/docker/9f\n1:name=systemd:/docker/9f\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that replaces ``/sys/fs/cgroup``."""
    monkeypatch.setattr(cgroup, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")
    return tmp_path / "groups"


def write(groups: Path, own: str, files: dict[str, str]) -> None:
    groups.with_name("own").write_text(own)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        (NESTED, {"system.slice/scanline.service/cpu.max": "50000 100000\n"}, 0.5),
        # Every group is limited by its parents.
        (
            NESTED,
            {
                "system.slice/scanline.service/cpu.max": "max 100000\n",
                "system.slice/cpu.max": "300000 100000\n",
            },
            3.0,
        ),
        # The path is the host's, but the container sees its own group as the root.
        (VERSION_1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        (
            VERSION_1,
            {
                "cpu/docker/9f/cpu.cfs_quota_us": "25000\n",
                "cpu/docker/9f/cpu.cfs_period_us": "50000\n",
            },
            0.5,
        ),
        (
            VERSION_1,
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
        ("1:name=systemd:/\n", {"cpu/cpu.cfs_quota_us": "1\n"}, math.inf),
        ("", {"cpu.max": "1 100000\n"}, math.inf),
    ],
)
def test_cpu_quota(groups: Path, own: str, files: dict[str, str], cores: float) -> None:
    write(groups, own, files)
    assert cgroup.cpu_quota() == cores


def test_usable_cores_are_limited_by_the_quota(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {10**6, 10**6 + 1, 10**6 + 2})
    for quota, cores in (("max", 3), ("900000", 3), ("290000", 2), ("10000", 1)):
        write(groups, "0::/\n", {"cpu.max": f"{quota} 100000\n"})
        assert cpu.usable_cores() == cores


STAT = """cache 9
inactive_file 15000
active_file 5000
total_inactive_file 7000
total_active_file 1"""


@pytest.mark.parametrize(
    ("own", "folder", "names", "files"),
    [
        ("0::/\n", ".", ("memory.max", "memory.current"), 20000),
        (NESTED, "system.slice/scanline.service", ("memory.max", "memory.current"), 20000),
        (NESTED, "system.slice", ("memory.max", "memory.current"), 20000),
        (VERSION_1, "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), 7001),
        (VERSION_1, "memory/docker/9f", ("memory.limit_in_bytes", "memory.usage_in_bytes"), 7001),
    ],
)
def test_memory_left(
    groups: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    folder: str,
    names: tuple[str, str],
    files: int,
) -> None:
    meminfo = groups.with_name("meminfo")
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 64 kB\nHugePages: 0\n")
    monkeypatch.setattr(decoder_memory, "_MEMINFO", meminfo)
    groups.with_name("own").write_text(own)
    assert decoder_memory.free_memory() == 65536
    for most in ("max", "50000", "20000", "999999"):
        limits = dict(zip(names, (most, "50000"), strict=True)) | {"memory.stat": STAT}
        write(groups, own, {f"{folder}/{name}": f"{text}\n" for name, text in limits.items()})
        left = math.inf if most == "max" else max(0, int(most) - (50000 - files))
        assert cgroup.memory_left() == left
        assert decoder_memory.free_memory() == min(left, 65536)


def test_no_cgroups_means_no_limits(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroup.cpu_quota() == cgroup.memory_left() == math.inf
    monkeypatch.setattr(decoder_memory, "_MEMINFO", groups / "none")
    assert 2**20 < decoder_memory.free_memory() < 2**50
