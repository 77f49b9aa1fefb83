"""Decorator that makes double backward an error instead of a wrong gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]
DOUBLE_BACKWARD_ERROR = "double backward is not supported here: use plain PyTorch operations"


class _RaiseOnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(DOUBLE_BACKWARD_ERROR)


def refuse_double_backward(backward: Backward) -> Backward:
    """Make differentiating the results of an ``autograd.Function``'s ``backward`` raise an error.

    ``torch.autograd.function.once_differentiable`` raises only if the path leads to the incoming
    gradients, and silently omits what depends on the saved tensors.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        with torch.no_grad():
            results = backward(ctx, *grads)
        inputs = (*grads, *ctx.saved_tensors)
        return tuple(
            None if result is None else _RaiseOnBackward.apply(result, *inputs)  # type: ignore[no-untyped-call]
            for result in results
        )

    return wrapper
