"""Linear maps: those of the blocks, and in front of and behind them, in float32.

Training on a CPU has ways of its own to their gradients where torch's take longer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.custom_op import assume_constant_result, custom_op
from scanline.kernels.native.cpu import cpu
from scanline.kernels.native.training import embedding
from scanline.kernels.native.training import linear as native_linear
from scanline.kernels.native.training.library import is_available, supports


def embedding_sum(table: Tensor, ids: Tensor) -> Tensor:
    """Sum rows of a table: ``table: [R, D]``, int64 ``ids: [N, places]`` below R → ``[N, D]``.

    Gradients flow to the table; on a CPU in one pass of C++, where torch sorts all ids first.
    """
    if supports(table, torch.float32):
        y: Tensor = embedding.embedding_sum(table, ids)
        return y
    return F.embedding_bag(ids, table, mode="sum")


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Give what ``x`` is multiplied in now, where it lies."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear_without_bias(x: Tensor, weight: Tensor) -> Tensor:
    """Give W x, in autocast's dtype if that is on: ``x: [..., I]``, ``weight: [O, I]``.

    In a process of one thread, on a CPU that multiplies pairs of bfloat16, the weight's gradient is
    summed in one pass of C++: torch takes a quarter longer for it, and rounds it to bfloat16.
    """
    if (
        _is_trained_on_cpu(x, weight, torch.bfloat16)
        and is_available()
        and _native_gradient_is_faster()
    ):
        y: Tensor = native_linear.linear(x.to(torch.bfloat16), weight)
        return y
    return F.linear(x, weight)


@assume_constant_result
def _native_gradient_is_faster() -> bool:
    if torch.get_num_threads() > 1:  # torch's, which wait for its next product, would be in the way
        return False
    features = cpu()[1]
    return "avx512_bf16" in features and "amx_tile" not in features  # torch multiplies with AMX


def full_precision_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give W x + b in the weights' precision: ``x: [..., I]``, ``weight: [O, I]`` → ``[..., O]``.

    oneDNN multiplies where that trains in float32 on a CPU with AVX-512 that is not Intel's: torch
    would have MKL do it, which does without AVX-512 there and takes twice as long.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(weight.dtype)
        if _is_trained_on_cpu(x, weight, torch.float32) and is_available() and _onednn_is_faster():
            y: Tensor = _linear(x.flatten(0, -2), weight, bias)
            return y.view(*x.shape[:-1], -1)
        return F.linear(x, weight, bias)


@assume_constant_result
def _onednn_is_faster() -> bool:
    onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(onednn and torch.cpu._is_avx512_supported() and "Intel" not in cpu()[0])


def _is_trained_on_cpu(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether a float32 weight is trained on a CPU, and multiplied in ``dtype``."""
    here = x.device.type == "cpu" and weight.dtype == torch.float32 and x.numel() > 0
    return here and autocast_dtype(x) == dtype and weight.requires_grad and torch.is_grad_enabled()


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


@custom_op("scanline::full_precision_linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _multiply(x, weight, bias)


@custom_op("scanline::full_precision_linear_backward")
def _linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, of_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_input = _multiply(grad, weight.T, None) if of_x else x.new_empty(0)
    return of_input, native_linear.weight_gradient(grad, x), grad.sum(0)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return x.new_empty(len(x), len(weight))


@_linear_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, of_x: bool) -> Any:
    return (
        x.new_empty(x.shape if of_x else 0),
        weight.new_empty(weight.shape),
        grad.new_empty(grad.shape[1]),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _grad(ctx: Any, grad: Tensor) -> Any:
    of_x = ctx.needs_input_grad[0]
    of_input, *rest = _linear_backward(grad, *ctx.saved_tensors, of_x)
    return of_input if of_x else None, *rest


_linear.register_autograd(_grad, setup_context=_keep)
