"""Decorator that makes double backward an error instead of a wrong gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]


def refuse_double_backward(backward: Backward) -> Backward:
    """Make an ``autograd.Function``'s ``backward`` raise if its results are to be differentiated.

    ``torch.autograd.function.once_differentiable`` raises only if the path leads to the incoming
    gradients, and silently omits what depends on the saved tensors.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "double backward is not supported here: use plain PyTorch operations"
            )
        return backward(ctx, *grads)

    return wrapper
