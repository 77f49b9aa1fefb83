"""Python's own housekeeping, kept out of the way of an engine's thread."""

from __future__ import annotations

import gc
import sys

# The engine's thread wants the interpreter back for microseconds between two native steps; by
# default a busy event loop would keep it waiting 5 ms, longer than many steps take.
SWITCH_INTERVAL_SECONDS = 0.0005


def tune_interpreter() -> None:
    """Prepare a process that draws, once its models are open.

    Threads are switched sooner. What is loaded by now stays loaded, and the garbage collector looks
    through it no more: that was a fourth of what the engine needs for an image.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.collect()
    gc.freeze()
