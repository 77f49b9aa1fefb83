"""What stands between two products of a layer, on a CUDA device: add, normalise, convolve.

Two launches forward and one back, each near one pass over memory: written in torch they are eight,
and some thirty back, the most of them the short convolution's. Tiles are fixed, and so is who sums
what: an image's numbers do not depend on its neighbours, and a gradient is the same every time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.cuda.available import PROGRAMS
from scanline.kernels.cuda.residual_kernels import backward_kernel, seen_kernel, sum_kernel
from scanline.kernels.cuda.variants import KernelVariant
from scanline.kernels.custom_op import custom_op
from scanline.kernels.short_conv import TAPS

# Numbers in a tile and warps to it: 8 a thread, but 4 on the way back, which needs the registers.
_SUM, _SEEN, _BACK = (2048, 4), (2048, 8), (512, 4)


def _tiles(D: int, numbers: int) -> dict[str, int]:
    """Give a tile's constants: whole rows of features, padded to a power of two."""
    wide = triton.next_power_of_2(D)
    return {"D": D, "BT": max(1, numbers // wide), "BD": wide}


def _warps(D: int, numbers: int, warps: int) -> int:
    """Give as many warps as its tile has, more where one row is larger than that."""
    return warps * max(1, int(triton.next_power_of_2(D)) // numbers)


def _even(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


@custom_op("scanline::triton_residual")
def _forward(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
    norm_bias: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Give the sum (empty where nothing is added), what is seen of it, and the norm's two parts."""
    B, T, D = x.shape
    x, norm_weight, norm_bias = x.contiguous(), norm_weight.contiguous(), norm_bias.contiguous()
    added, bias, conv_weight = _even(added), _even(bias), _even(conv_weight)
    total = x.new_empty(0 if added is None else x.shape)
    mean, scale, seen = x.new_empty(B, T), x.new_empty(B, T), torch.empty_like(x, dtype=dtype)
    if x.numel():
        sizes = _tiles(D, _SUM[0])
        sum_kernel[(triton.cdiv(B * T, sizes["BT"]),)](
            x, added, bias, total, mean, scale, B * T, eps, **sizes, num_warps=_warps(D, *_SUM)
        )
        sizes = _tiles(D, _SEEN[0])
        tiles = triton.cdiv(T, sizes["BT"])
        seen_kernel[(B * tiles,)](
            x if added is None else total, mean, scale, norm_weight, norm_bias, conv_weight, seen,
            T, tiles, columns, stride, **sizes, CONVOLVED=conv_weight is not None,
            num_warps=_warps(D, *_SEEN),
        )  # fmt: skip
    return total, seen, mean, scale


@custom_op("scanline::triton_residual_backward")
def _backward(
    grad_total: Tensor | None, grad_seen: Tensor, total: Tensor, mean: Tensor, scale: Tensor,
    norm_weight: Tensor, norm_bias: Tensor, conv_weight: Tensor | None, columns: int, stride: int,
    added: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Give the sum's gradient, the same in what was ``added``'s dtype (or empty), the weights'."""
    B, T, D = total.shape
    grad_seen, total = grad_seen.contiguous(), total.contiguous()
    norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
    grad_total, conv_weight = _even(grad_total), _even(conv_weight)
    grad = torch.empty_like(total)
    other = added is not None and added != grad.dtype
    of_added = torch.empty_like(grad, dtype=added) if other else grad.new_empty(0)
    sizes = _tiles(D, _BACK[0])
    tiles = triton.cdiv(T, sizes["BT"])
    each = max(1, triton.cdiv(B * tiles, PROGRAMS))
    programs = triton.cdiv(B * tiles, each)
    of_programs = grad.new_zeros(programs, 3 + TAPS, D)
    if programs:
        backward_kernel[(programs,)](
            total, mean, scale, norm_weight, norm_bias, conv_weight, grad_seen, grad_total, grad,
            of_added if other else None, of_programs, T, tiles, B * tiles, each, columns, stride,
            **sizes, CONVOLVED=conv_weight is not None, num_warps=_warps(D, *_BACK),
        )  # fmt: skip
    return grad, of_added, of_programs.sum(0)


@_forward.register_fake
def _(x: Tensor, added: Tensor | None, *rest: Any) -> Any:
    total, part = x.new_empty(0 if added is None else x.shape), x.new_empty(x.shape[:2])
    return total, x.new_empty(x.shape, dtype=rest[-1]), part, x.new_empty(x.shape[:2])


@_backward.register_fake
def _(grad_total: Tensor | None, grad_seen: Tensor, total: Tensor, *rest: Any) -> Any:
    other = rest[-1] is not None and rest[-1] != total.dtype
    of_added = total.new_empty(total.shape, dtype=rest[-1]) if other else total.new_empty(0)
    return total.new_empty(total.shape), of_added, total.new_empty(3 + TAPS, total.shape[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, added, bias, norm_weight, norm_bias, conv_weight, ctx.columns, ctx.stride, _, _ = inputs
    total, _, mean, scale = output
    ctx.added, ctx.bias = None if added is None else added.dtype, bias is not None
    ctx.dtype = output[1].dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, scale)
    kept = x if added is None else total
    ctx.save_for_backward(kept, mean, scale, norm_weight, norm_bias, conv_weight)


def _gradients(
    ctx: Any, grad_total: Tensor | None, grad_seen: Tensor | None, *_: Tensor | None
) -> Any:
    total, *rest = ctx.saved_tensors
    if grad_seen is None:
        grad_seen = torch.zeros_like(total, dtype=ctx.dtype)
    grad, of_added, of_weights = _backward(
        grad_total if ctx.added else None, grad_seen, total, *rest, ctx.columns, ctx.stride,
        ctx.added,
    )  # fmt: skip
    of_bias, of_norm_weight, of_norm_bias, *_ = of_weights
    mine = None if ctx.added is None else of_added if of_added.numel() else grad
    of_conv = None if rest[-1] is None else of_weights[3:]
    return (
        grad, mine, of_bias if ctx.bias else None, of_norm_weight, of_norm_bias, of_conv,
        None, None, None, None,
    )  # fmt: skip


_forward.register_autograd(_gradients, setup_context=_keep)


def triton_residual(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None, columns: int, stride: int, eps: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute ``residual`` with Triton kernels: the sum (``x`` if nothing is added), what is seen.

    ``x: [B, T, D]`` float32, D up to ``available.MAX_FEATURES``; ``added`` like it in any dtype and
    its ``bias: [D]``, or None; ``norm``: weight and bias, ``conv_weight: [5, D]`` or None, float32.
    What is seen comes in ``dtype``; gradients flow to all tensors.
    """
    total, seen, _, _ = _forward(x, added, bias, *norm, conv_weight, columns, stride, eps, dtype)
    return x if added is None else total, seen


def variants() -> list[KernelVariant]:
    """List what is launched: usual and odd widths, in training's dtypes, convolved or not."""
    found = []
    for D, dtype, convolved in (
        (128, "bf16", True), (128, "bf16", False), (128, "fp32", True), (256, "bf16", True),
        (256, "fp32", False), (512, "bf16", True), (1024, "bf16", True), (72, "bf16", True),
        (72, "fp32", True),
    ):  # fmt: skip
        name = f"{D}/{dtype}" + ("" if convolved else "/no convolution")
        conv: dict[str, object] = {"CONVOLVED": convolved} | ({} if convolved else {"conv": None})
        alike: dict[str, object] = {"grad_added": None} if dtype == "fp32" else {}
        launches: list[tuple[str, Any, dict[str, object], tuple[int, int]]] = [
            ("", sum_kernel, {}, _SUM),
            ("/first", sum_kernel, {"bias": None, "added": None}, _SUM),
            ("", seen_kernel, conv, _SEEN),
            ("", backward_kernel, conv | alike, _BACK),
            ("/first", backward_kernel, conv | {"grad_added": None, "grad_total": None}, _BACK),
        ]
        for what, kernel, given, tile in launches:
            constants = given | _tiles(D, tile[0])
            types = {
                argument: _type(argument, dtype)
                for argument in kernel.arg_names
                if argument not in constants
            }
            variant = f"{kernel.__name__}/{name}{what}"
            found.append(KernelVariant(variant, kernel, types, constants, _warps(D, *tile), 3))
    return found


def _type(argument: str, dtype: str) -> str:
    if argument in ("T", "tiles", "all_tiles", "each", "columns", "stride"):
        return "i32"
    if argument == "rows":
        return "i32:16"
    if argument == "eps":
        return "fp32"
    return f"*{dtype if argument in ('added', 'seen', 'grad_seen', 'grad_added') else 'fp32'}:16"
