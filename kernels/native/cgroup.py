"""What its control groups, as of a container or a unit of systemd, let this process use."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Of version 2 and of version 1: the limit, what is used, and how the kinds of it begin.
_MEMORY = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def cpu_quota() -> float:
    """Give how many cores' time may be used, infinite where nothing bounds it."""
    quotas = [math.inf]
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # version 2; "max" is no bound
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            each = int((folder / "cpu.cfs_period_us").read_text())
            if (most := int((folder / "cpu.cfs_quota_us").read_text())) > 0:
                quotas.append(most / each)
    return min(quotas)


def memory_left() -> float:
    """Give the bytes that may still be taken, infinite where nothing bounds them."""
    left = [math.inf]
    for folder in _folders("memory"):
        for limit, current, kind in _MEMORY:
            with contextlib.suppress(OSError, KeyError, ValueError):
                most = int((folder / limit).read_text())
                used = int((folder / current).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
                kinds = dict(line.split() for line in lines)
                # Files that were read stay in memory while nobody else wants it.
                used -= int(kinds[f"{kind}inactive_file"]) + int(kinds[f"{kind}active_file"])
                left.append(max(0, most - used))
    return min(left)


def _folders(controller: str) -> Iterator[Path]:
    """Give the folders of a controller's groups, from this process's own to the one of all."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS  # versions 1 and 2
        # In a container it may be the host's path, of which only the root is there.
        own = PurePosixPath(path.lstrip("/"))
        yield from (root / one for one in (own, *own.parents))
