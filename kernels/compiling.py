"""What ``torch.compile`` is told of these kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def assume_constant(function: F) -> F:
    """Let ``torch.compile`` call a function once, as it traces, and keep what it gave.

    ``torch.compiler.assume_constant_result`` without importing the compiler, which takes as long as
    the rest of torch, at every start of whoever compiles nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
