"""Residual connection, layer norm and short convolution of a layer, fused on a CUDA device.

The forward pass is two launches and the backward pass one, each close to one pass over memory. In
PyTorch they are eight and about thirty kernels, most of them for the short convolution. Tile sizes
and the order of sums are fixed: an image's result does not depend on the other images of the batch,
and gradients are deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.cuda.available import PROGRAMS
from scanline.kernels.cuda.residual_kernels import (
    add_kernel,
    norm_conv_kernel,
    residual_backward_kernel,
)
from scanline.kernels.cuda.variants import KernelVariant
from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.short_conv import TAPS

# Elements per tile and warps: 16 elements per thread for the sum, 8 for norm and convolution, and 4
# for the backward pass, which needs more registers.
_ADD, _NORM_CONV, _BACKWARD = (2048, 4), (2048, 8), (512, 4)


def _tile_sizes(D: int, elements: int) -> dict[str, int]:
    """Return the constants of a tile of whole rows, padded to a power of two."""
    padded = triton.next_power_of_2(D)
    return {"D": D, "BT": max(1, elements // padded), "BD": padded}


def _warps(D: int, elements: int, warps: int) -> int:
    """Return the number of warps of a tile: more than ``warps`` if one row exceeds the tile."""
    return warps * max(1, int(triton.next_power_of_2(D)) // elements)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


class _Residual(torch.autograd.Function):
    """The sum (empty if nothing is added) and the output."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
        norm_bias: Tensor, conv_weight: Tensor | None, columns: int, eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        B, T, D = x.shape
        x, norm_weight, norm_bias = x.contiguous(), norm_weight.contiguous(), norm_bias.contiguous()
        added, bias, conv_weight = _contiguous(added), _contiguous(bias), _contiguous(conv_weight)
        total = x.new_empty(0 if added is None else x.shape)
        mean, rstd, out = x.new_empty(B, T), x.new_empty(B, T), torch.empty_like(x, dtype=dtype)
        summed = x if added is None else total
        if x.numel():
            sizes = _tile_sizes(D, _ADD[0])
            add_kernel[(triton.cdiv(B * T, sizes["BT"]),)](
                x, added, bias, total, mean, rstd, B * T, eps, **sizes, num_warps=_warps(D, *_ADD)
            )
            sizes = _tile_sizes(D, _NORM_CONV[0])
            tiles = triton.cdiv(T, sizes["BT"])
            norm_conv_kernel[(B * tiles,)](
                summed, mean, rstd, norm_weight, norm_bias, conv_weight, out,
                T, tiles, columns, **sizes, CONVOLVED=conv_weight is not None,
                num_warps=_warps(D, *_NORM_CONV),
            )  # fmt: skip
        ctx.added_dtype, ctx.has_bias = None if added is None else added.dtype, bias is not None
        ctx.dtype, ctx.columns = dtype, columns
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(summed, mean, rstd, norm_weight, norm_bias, conv_weight)
        return total, out

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_total: Tensor | None, grad_out: Tensor | None) -> Any:
        total, mean, rstd, norm_weight, norm_bias, conv_weight = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(total, dtype=ctx.dtype)
        grad_out = grad_out.contiguous()
        grad_total = _contiguous(grad_total) if ctx.added_dtype else None
        B, T, D = total.shape
        grad = torch.empty_like(total)
        casts = ctx.added_dtype not in (None, grad.dtype)
        grad_added = torch.empty_like(grad, dtype=ctx.added_dtype) if casts else None
        sizes = _tile_sizes(D, _BACKWARD[0])
        tiles = triton.cdiv(T, sizes["BT"])
        tiles_per_program = max(1, triton.cdiv(B * tiles, PROGRAMS))
        programs = triton.cdiv(B * tiles, tiles_per_program)
        # Of each program: bias, norm weight, norm bias and five taps.
        partial_grads = grad.new_zeros(programs, 3 + TAPS, D)
        if programs:
            residual_backward_kernel[(programs,)](
                total, mean, rstd, norm_weight, norm_bias, conv_weight, grad_out, grad_total, grad,
                grad_added, partial_grads, T, tiles, B * tiles, tiles_per_program,
                ctx.columns, **sizes, CONVOLVED=conv_weight is not None,
                num_warps=_warps(D, *_BACKWARD),
            )  # fmt: skip
        grad_weights = partial_grads.sum(0)
        grad_bias, grad_norm_weight, grad_norm_bias, *_ = grad_weights
        if ctx.added_dtype == grad.dtype:
            grad_added = grad
        return (
            grad, grad_added, grad_bias if ctx.has_bias else None, grad_norm_weight, grad_norm_bias,
            None if conv_weight is None else grad_weights[3:], None, None, None,
        )  # fmt: skip


def triton_residual(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None, columns: int, eps: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute ``residual`` with Triton kernels; gradients flow to all tensors.

    Args:
        x: Residual stream ``[B, T, D]`` in float32, D up to ``available.MAX_FEATURES``.
        added: Tensor to add to ``x``, of its shape and of any dtype, or None.
        bias: Bias ``[D]`` of ``added``, or None.
        norm: Weight and bias of the layer norm, ``[D]`` in float32.
        conv_weight: Taps of the short convolution, ``[5, D]`` in float32, or None without one.
        columns: Pixels per row of the image.
        eps: Added to the variance.
        dtype: Dtype of the output.

    Returns:
        The sum (``x`` if nothing is added) and the normalised, convolved output.
    """
    total, out = _Residual.apply(x, added, bias, *norm, conv_weight, columns, eps, dtype)
    return x if added is None else total, out


def variants() -> list[KernelVariant]:
    """List the kernel variants for common and odd widths, all dtypes, with and without taps."""
    found = []
    for D, dtype, convolved in (
        (128, "bf16", True), (128, "bf16", False), (128, "fp32", True), (256, "bf16", True),
        (256, "fp32", False), (512, "bf16", True), (1024, "bf16", True), (72, "bf16", True),
        (72, "fp32", True),
    ):  # fmt: skip
        name = f"{D}/{dtype}" + ("" if convolved else "/no convolution")
        conv: dict[str, object] = {"CONVOLVED": convolved} | ({} if convolved else {"conv": None})
        same_dtype: dict[str, object] = {"grad_added": None} if dtype == "fp32" else {}
        launches: list[tuple[str, Any, dict[str, object], tuple[int, int]]] = [
            ("", add_kernel, {}, _ADD),
            ("/first", add_kernel, {"bias": None, "added": None}, _ADD),
            ("", norm_conv_kernel, conv, _NORM_CONV),
            ("", residual_backward_kernel, conv | same_dtype, _BACKWARD),
            (
                "/first", residual_backward_kernel,
                conv | {"grad_added": None, "grad_total": None}, _BACKWARD,
            ),
        ]  # fmt: skip
        for suffix, kernel, given, tile in launches:
            constants = given | _tile_sizes(D, tile[0])
            types = {
                argument: _type(argument, dtype)
                for argument in kernel.arg_names
                if argument not in constants
            }
            variant = f"{kernel.__name__}/{name}{suffix}"
            found.append(KernelVariant(variant, kernel, types, constants, _warps(D, *tile), 3))
    return found


def _type(argument: str, dtype: str) -> str:
    if argument in ("T", "tiles", "all_tiles", "tiles_per_program", "columns"):
        return "i32"
    if argument == "rows":
        return "i32:16"
    if argument == "eps":
        return "fp32"
    activations = "added", "out", "grad_out", "grad_added"
    return f"*{dtype if argument in activations else 'fp32'}:16"
