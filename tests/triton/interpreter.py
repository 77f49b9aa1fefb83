"""Triton's interpreter with its language patched once a process, not again at every call.

The interpreter exchanges the members of ``triton.language`` whenever a kernel begins or calls a
function, and back at its end. Where nothing is compiled they may stay exchanged: the tests then
take a third of the time, and run the same operations.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


def _kernel() -> tuple[object, object]:
    """Stand for a kernel: what is patched are the modules that it sees."""
    return tl, core


def patch_once() -> None:
    """Patch the language for the rest of the process; again does nothing."""
    interpreter._patch_lang(_kernel)
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
