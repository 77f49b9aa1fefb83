"""Custom torch operators that do not import torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CustomOp:
    """A function registered as a torch operator, which differentiates.

    The function must not mutate or return its inputs. Equals ``torch.library.custom_op``, except
    that the latter imports the compiler on the first call, which takes a second and 150 MB.
    Without a registered gradient, differentiating raises an error, whereas torch would silently
    omit the gradient.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._backward: Callable[..., Any] | None = None
        self._setup_context: Callable[..., None] = lambda ctx, inputs, output: None
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(name, "CompositeExplicitAutograd", function)
        torch.library.register_autograd(
            name,
            lambda ctx, *grads: self._run_backward(ctx, *grads),
            setup_context=lambda ctx, inputs, output: self._setup_context(ctx, inputs, output),
        )
        namespace, _, op = name.partition("::")
        self._run = getattr(getattr(torch.ops, namespace), op).default

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        """Register the gradient, as in ``torch.library.register_autograd``."""
        self._backward, self._setup_context = backward, setup_context

    def _run_backward(self, ctx: Any, *grads: Any) -> Any:
        if self._backward is None:
            raise RuntimeError(f"{self._name} has no gradient")
        return self._backward(ctx, *grads)


def custom_op(name: str) -> Callable[[Callable[..., Any]], CustomOp]:
    """Return a decorator that makes an operator of a function, with the schema of its annotations.

    Args:
        name: The operator's name with its namespace, such as ``scanline::linear``.
    """
    return lambda function: CustomOp(name, function)
