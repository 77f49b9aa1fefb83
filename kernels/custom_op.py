"""What ``torch.compile`` is told of these kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def assume_constant_result(function: F) -> F:
    """Let ``torch.compile`` call a function once, as it traces, and keep what it gave.

    ``torch.compiler.assume_constant_result`` without importing the compiler, which takes as long as
    the rest of torch, at every start of whoever compiles nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class CustomOp:
    """A function as torch's operator, which compiles and differentiates.

    It changes none of its inputs, and returns none of them. ``torch.library.custom_op`` does the
    same, but imports the compiler where one is first called: a second, and 150 MB, for whoever
    compiles nothing. Without a way back its gradient is refused: torch alone would leave it out.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._backward: Callable[..., Any] | None = None
        self._keep: Callable[..., None] = lambda ctx, inputs, output: None
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(name, "CompositeExplicitAutograd", function)
        torch.library.register_autograd(
            name,
            lambda ctx, *grads: self._back(ctx, *grads),
            setup_context=lambda ctx, inputs, output: self._keep(ctx, inputs, output),
        )
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
        self._backward, self._keep = backward, setup_context

    def _back(self, ctx: Any, *grads: Any) -> Any:
        if self._backward is None:
            raise RuntimeError(f"{self._name} has no gradient")
        return self._backward(ctx, *grads)


def custom_op(name: str) -> Callable[[Callable[..., Any]], CustomOp]:
    """Make an operator of a function, whose annotations are its schema."""
    return lambda function: CustomOp(name, function)
