"""A gradient that has none of its own: where one is asked for it is refused, and never left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]
DOUBLE_BACKWARD_ERROR = "this gradient has no gradient: compute what has, in plain torch"


class _Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *of: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(DOUBLE_BACKWARD_ERROR)


def refuse_double_backward(backward: Backward) -> Backward:
    """Refuse the gradient of what an ``autograd.Function``'s ``backward`` gives.

    ``torch.autograd.function.once_differentiable`` does so only on a way that ends at the gradients
    that came in, and would leave out what depends on the tensors that were saved.
    """

    @wraps(backward)
    def once(ctx: Any, *grads: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        with torch.no_grad():
            given = backward(ctx, *grads)
        of = (*grads, *ctx.saved_tensors)
        return tuple(None if one is None else _Refused.apply(one, *of) for one in given)  # type: ignore[no-untyped-call]

    return once
