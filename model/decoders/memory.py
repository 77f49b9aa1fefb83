"""Memory budget for decoder slots."""

from __future__ import annotations

import os
from pathlib import Path

from scanline.kernels.native.cgroup import memory_left
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError

SHARE = 0.75  # share of the free memory that slots may take

_MEMINFO = Path("/proc/meminfo")


def free_memory() -> int:
    """Return the free memory in bytes of this machine, or of its container if that is less."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        free = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not Linux
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(free, memory_left()))


def slot_memory_budget() -> int:
    """Return the memory in bytes that slots may take here."""
    return int(SHARE * free_memory())


class InsufficientResourcesError(BackendError):
    """Raised if memory or threads do not suffice; another backend would not help."""


class InsufficientMemoryError(InsufficientResourcesError):
    """Raised if the slots do not fit into memory. The error says how many do.

    Attributes:
        problem: The error without the number of slots that fits.
        max_slots: The largest number of slots that fits.
    """

    def __init__(self, problem: str, max_slots: int) -> None:
        super().__init__(f"{problem}: use at most {max_slots}")
        self.problem, self.max_slots = problem, max_slots


def check_slot_memory(config: ModelConfig, slots: int, state: int) -> int:
    """Return the memory in bytes that the slots take, each with ``state`` bytes of state.

    Raises:
        InsufficientMemoryError: If they exceed ``slot_memory_budget``; the message and
            ``max_slots`` say how many would fit.
    """
    # Canvas, known mask and bits of each pixel.
    each = state + config.pixels * (config.channels + 1 + 4)
    budget = slot_memory_budget()
    if slots * each > budget:
        reason = ""
        if config.attention == "softmax":
            reason = ", because softmax attention keeps every key and value of an image"
        raise InsufficientMemoryError(
            f"{slots} slots of this model take {slots * each / 1e9:.3g} GB, {each / 1e6:.3g} MB "
            f"each{reason}; {budget / 1e9:.3g} GB are available",
            max_slots=budget // each,
        )
    return slots * each
