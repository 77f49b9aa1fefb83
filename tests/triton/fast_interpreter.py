"""Triton's interpreter without what it does in vain: the tests take a fifth of the time.

It exchanges the members of ``triton.language`` whenever a kernel begins or calls a function, and
back at its end; where nothing is compiled they may stay exchanged. It computes every sum of whole
numbers a second time in 64 bits, and compares them, for an assertion that it then leaves out. It
makes its table of dtypes anew at every look into it. Without these it runs the same operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


def _kernel() -> tuple[object, object]:
    """Stand for a kernel: what is patched are the modules that it sees."""
    return tl, core


def patch_interpreter() -> None:
    """Patch the language for the rest of the process."""
    interpreter._patch_lang(_kernel)
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "the interpreter would assert what it is not to compute"
    builder.options = replace(builder.options, sanitize_overflow=False)
    look_up, found = interpreter._get_np_dtype, dict[str, np.dtype[Any]]()

    def numpy_dtype(dtype: tl.dtype) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in found:
            found[name] = look_up(dtype)
        return found[name]

    interpreter._get_np_dtype = numpy_dtype
