"""CPU and memory limits of the process's control groups (containers, systemd units)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# File of the limit, file of the usage, and key prefix in memory.stat: version 2, then version 1.
_MEMORY = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def cpu_quota() -> float:
    """Return the CPU quota in cores, infinite without a limit."""
    quotas = [math.inf]
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # version 2; "max" means no limit
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            period_us = int((folder / "cpu.cfs_period_us").read_text())
            if (quota_us := int((folder / "cpu.cfs_quota_us").read_text())) > 0:
                quotas.append(quota_us / period_us)
    return min(quotas)


def memory_left() -> float:
    """Return the bytes that may still be allocated, infinite without a limit."""
    left = [math.inf]
    for folder in _folders("memory"):
        for limit, current, prefix in _MEMORY:
            with contextlib.suppress(OSError, KeyError, ValueError):
                maximum = int((folder / limit).read_text())
                used = int((folder / current).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
                statistics = dict(line.split() for line in lines)
                # The page cache is freed when memory is needed.
                for kind in ("inactive_file", "active_file"):
                    used -= int(statistics[f"{prefix}{kind}"])
                left.append(max(0, maximum - used))
    return min(left)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from the process's own up to the root."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS  # versions 1 and 2
        # In a container this may be the host's path, of which only the root exists.
        own = PurePosixPath(path.lstrip("/"))
        yield from (root / one for one in (own, *own.parents))
