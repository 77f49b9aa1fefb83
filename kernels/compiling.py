"""What ``torch.compile`` is told of these kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def assume_constant(function: F) -> F:
    """Let ``torch.compile`` call a function once, as it traces, and keep what it gave.

    ``torch.compiler.assume_constant_result`` without importing the compiler, which takes as long as
    the rest of torch, at every start of whoever compiles nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Operator:
    """A function as torch's operator, which compiles and differentiates.

    It changes none of its inputs, and returns none of them. ``torch.library.custom_op`` does the
    same, but imports the compiler where one is first called: a second, and 150 MB, for whoever
    compiles nothing.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(name, "CompositeExplicitAutograd", function)
        space, _, own = name.partition("::")
        self._run = getattr(getattr(torch.ops, space), own).default

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def register_fake(self, function: Callable[..., Any]) -> None:
        """Tell, of inputs without values, which shapes come out."""
        torch.library.register_fake(self._name, function)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        """Tell the way back, as ``torch.library.register_autograd`` takes it."""
        torch.library.register_autograd(self._name, backward, setup_context=setup_context)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of a function, whose annotations are its schema."""
    return lambda function: Operator(name, function)
