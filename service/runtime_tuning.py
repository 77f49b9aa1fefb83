"""Tuning of the Python interpreter for a process with an engine."""

from __future__ import annotations

import gc
import sys

# An engine's thread needs the GIL for microseconds between two native steps. By default a busy
# event loop may keep it for 5 ms, which is longer than many steps take.
SWITCH_INTERVAL_SECONDS = 0.0005


def tune_interpreter() -> None:
    """Tune the interpreter once the models are open.

    Shortens the switch interval of threads. Excludes all objects that exist now from garbage
    collection, which took a quarter of the engine's time per image.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.collect()
    gc.freeze()
