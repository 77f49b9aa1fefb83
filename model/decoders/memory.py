"""How many slots fit into this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

from scanline.kernels.native.cgroup import memory_left
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError

SHARE = 0.75  # of the free memory that slots may take

_MEMINFO = Path("/proc/meminfo")


def free_memory() -> int:
    """Give the bytes that may still be taken here: the machine's, or fewer in a container."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        free = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not Linux
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(free, memory_left()))


def slot_memory_budget() -> int:
    """Give the bytes that slots may take here."""
    return int(SHARE * free_memory())


class InsufficientResourcesError(BackendError):
    """Memory or threads are short for what was asked for, whatever the backend."""


class InsufficientMemoryError(InsufficientResourcesError):
    """There is no memory for so many slots, but for ``max_slots``."""

    def __init__(self, message: str, max_slots: int) -> None:
        super().__init__(message)
        self.max_slots = max_slots


def check_slot_memory(config: ModelConfig, slots: int, state: int) -> int:
    """Give the bytes that slots come to take, each of a ``state`` of so many and what is drawn.

    Raises ``InsufficientMemoryError``, which says how many slots would fit, where these do not.
    """
    # The canvas, which of it is known, and each pixel's bits.
    each = state + config.pixels * (config.channels + 1 + 4)
    there = slot_memory_budget()
    if slots * each > there:
        why = ""
        if config.attention == "softmax":
            why = ", since softmax attention keeps every key and value of an image"
        raise InsufficientMemoryError(
            f"{slots} slots of this model take {slots * each / 1e9:.3g} GB, {each / 1e6:.3g} MB "
            f"each{why}; {there / 1e9:.3g} GB are there for them: open at most {there // each}",
            max_slots=there // each,
        )
    return slots * each
