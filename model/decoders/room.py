"""How many slots fit into this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

from scanline.model.decoders.contract import BackendError
from scanline.model.network import LinearTransformer

SHARE = 0.75  # of the free memory that slots may take

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Give the bytes that may still be taken here: the machine's, or fewer in a container."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        free = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not Linux
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        most = int((_CGROUP / "memory.max").read_text())
        return min(free, max(0, most - int((_CGROUP / "memory.current").read_text())))
    except (OSError, ValueError):  # no such limit
        return free


def check_room(model: LinearTransformer, slots: int) -> None:
    """Raise ``BackendError``, which says how many would, where so many slots' states do not fit."""
    states = model.initial_state(1)
    each = sum(tensor.nbytes for state in states for tensor in state.values())
    room = int(SHARE * free_memory())
    if slots * each > room:
        why = ""
        if model.config.attention == "softmax":
            why = ", since softmax attention keeps every key and value of an image"
        raise BackendError(
            f"{slots} slots of this model take {slots * each / 1e9:.3g} GB, {each / 1e6:.3g} MB "
            f"each{why}; {room / 1e9:.3g} GB are there for them: open at most {room // each} "
            "(SCANLINE_SLOTS)"
        )
