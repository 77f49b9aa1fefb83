"""Causal linear attention on a CUDA device: eq. 9-15 in chunks of 16 or 32 positions, in Triton.

The forward and the backward pass are one launch each. A program processes the chunks of one head in
order and keeps the state in registers, so that each position is read once and the states between
chunks are never written to memory. The backward pass saves q, k, v, o and the denominators. It
iterates forward for the gradient of q and in reverse for those of k and v, in parallel, and writes
the three side by side, in the layout of the projection that computed q, k and v.

φ, its derivative and all sums are computed in float32. Matrix products use the tensor cores in
three passes of TF32 (``tf32x3``), which is as exact as float32. In training, where q, k and v come
as one packed bfloat16 tensor, products are in bfloat16. Tile sizes are fixed, so that an image's
result does not depend on the other images of the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scanline.kernels.attention.naive import AttentionState
from scanline.kernels.constants import ATTENTION_EPS
from scanline.kernels.cuda.attention_kernels import backward_kernel, forward_kernel
from scanline.kernels.cuda.variants import KernelVariant
from scanline.kernels.double_backward import refuse_double_backward

_FINAL = ("final_kv", "final_z")  # final state, which is None for packed q, k and v
_FLOAT32 = {"denominator", *_FINAL}  # float32 for every dtype of the inputs


def _padded(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


class _LaunchOptions(NamedTuple):
    """Compile-time options of a launch.

    Of ``num_stages`` chunks, one is being processed while the others are loaded.
    """

    constants: dict[str, object]
    num_warps: int
    num_stages: int
    maxnreg: int

    def constants_for(self, kernel: Any) -> dict[str, object]:
        return {name: self.constants[name] for name in self.constants if name in kernel.arg_names}


def _launch_options(
    dtype: torch.dtype, K: int, V: int, packed: bool, capability: tuple[int, int]
) -> _LaunchOptions:
    narrow, wide = packed and dtype == torch.bfloat16, max(K, V)
    constants: dict[str, object] = {
        "K": K, "V": V, "BT": 32 if narrow else 16, "BK": _padded(K), "BV": _padded(V),
        "BW": 16 if wide <= (16 if narrow else 32) else 32, "FEATURE_MAP": packed,
        "EPS": ATTENTION_EPS, "PRECISION": "bf16" if narrow else "tf32x3",
    }  # fmt: skip
    if narrow and wide <= 32:  # only two warps have work
        # With 168 registers per thread six programs fit on a multiprocessor. Some shapes would
        # spill a few registers with that limit.
        six = capability < (10, 0) and K == V == constants["BK"]
        return _LaunchOptions(constants, 2, 3, 168 if six else 255)
    return _LaunchOptions(constants, 4, 2, 255)


def _capability(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)


def _launch(
    kernel: Any, grid: tuple[int, ...], options: _LaunchOptions, *arguments: object
) -> None:
    if grid[0] > 0:
        kernel[grid](
            *arguments, **options.constants_for(kernel),
            num_warps=options.num_warps, num_stages=options.num_stages, maxnreg=options.maxnreg,
        )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _common_dtype(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)


def _tiles(size: int, options: _LaunchOptions) -> int:
    return int(triton.cdiv(size, options.constants["BW"]))


def _run_forward(
    q: Tensor, k: Tensor, v: Tensor, final: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return o and the denominators ``[B, T, H]``, and write the ``final`` state.

    Without it, q, k and v are packed, before the feature map.
    """
    (B, T, H, K), V = q.shape, v.shape[3]
    o = v.new_empty(v.shape)
    denominator = v.new_empty(v.shape[:3], dtype=torch.float32)
    options = _launch_options(q.dtype, K, V, final is None, _capability(q))
    _launch(
        forward_kernel, (B * H, _tiles(V, options)), options, q, k, v, o, denominator,
        *(final or (None, None)), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H,
    )  # fmt: skip
    return o, denominator


def _run_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, denominator: Tensor, packed: bool
) -> Tensor:
    """Return the gradients of q, k and v ``[B, T, H (2 K + V)]``."""
    (B, T, H, K), V = q.shape, v.shape[3]
    grad = q.new_empty(B, T, H * (2 * K + V), dtype=_common_dtype(q, k, v))
    options = _launch_options(q.dtype, K, V, packed, _capability(q))
    programs = 2 * _tiles(K, options) + _tiles(V, options)
    _launch(
        backward_kernel, (B * H * programs,), options, q, k, v, o, denominator,
        grad_o.contiguous(), grad, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H,
    )  # fmt: skip
    return grad


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = _rows(q), _rows(k), _rows(v)
        B, _, H, K = q.shape
        kv = q.new_empty(B, H, K, v.shape[3], dtype=torch.float32)
        z = q.new_empty(B, H, K, dtype=torch.float32)
        o, denominator = _run_forward(q, k, v, (kv, z))
        ctx.save_for_backward(q, k, v, o, denominator)
        ctx.mark_non_differentiable(kv, z)
        return o, kv, z

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_o: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        q, k, v, o, denominator = ctx.saved_tensors
        inputs = (q, k, v)
        grad = _run_backward(grad_o, q, k, v, o, denominator, packed=False)
        parts = grad.split([x.shape[2] * x.shape[3] for x in inputs], 2)
        return tuple(part.view(x.shape).to(x.dtype) for part, x in zip(parts, inputs, strict=True))


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        qkv = _rows(qkv)
        q, k, v = qkv.unbind(2)
        o, denominator = _run_forward(q, k, v, None)
        ctx.save_for_backward(qkv, o, denominator)
        return o

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_o: Tensor) -> Tensor:
        qkv, o, denominator = ctx.saved_tensors
        q, k, v = qkv.unbind(2)
        return _run_backward(grad_o, q, k, v, o, denominator, packed=True).view(qkv.shape)


def triton_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, AttentionState]:
    """Compute causal linear attention (eq. 9-12, gradients eq. 13-15) after the feature map.

    Args:
        q: Queries ``[B, T, H, K]`` in float32, float16 or bfloat16, with any strides; K is at most
            ``available.MAX_HEAD_SIZE``.
        k: Keys, as ``q``.
        v: Values ``[B, T, H, V]``, as ``q``.

    Returns:
        ``o``, with the shape and dtype of ``v``, and the final state in float32, which has no
        gradient.
    """
    o, kv, z = _Attention.apply(q, k, v)
    return o, AttentionState(kv, z)


def triton_packed_attention(qkv: Tensor) -> Tensor:
    """Compute causal linear attention with φ = elu + 1 of ``qkv: [B, T, 3, H, K]``; return o.

    The input and its gradient have the layout of the projection that computes q, k and v, so
    nothing is copied. For bfloat16 inputs, products are in bfloat16 and sums in float32.
    """
    o: Tensor = _PackedAttention.apply(qkv)
    return o


def variants(arch: int) -> list[KernelVariant]:
    """List the kernel variants for ``sm_<arch>``: common and odd head sizes, all dtypes."""
    cases = [(dtype, size) for dtype in ("fp32", "bf16") for size in (16, 32, 64)]
    cases += [("fp16", 32), ("fp32", 20), ("bf16", 20)]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    found = []
    for dtype, size in cases:
        for packed in (False, True):
            options = _launch_options(dtypes[dtype], size, size, packed, divmod(arch, 10))
            for kernel in (forward_kernel, backward_kernel):
                absent = {name: None for name in _FINAL if packed and name in kernel.arg_names}
                constants = options.constants_for(kernel) | absent
                name = f"attention_{kernel.__name__}/{dtype}/{size}" + ("/packed" if packed else "")
                types = {
                    argument: _type(argument, dtype, size)
                    for argument in kernel.arg_names
                    if argument not in constants
                }
                compiler = (options.num_warps, options.num_stages, options.maxnreg)
                found.append(KernelVariant(name, kernel, types, constants, *compiler))
    return found


def _type(argument: str, dtype: str, size: int) -> str:
    if argument in ("T", "H"):
        return "i32"
    if "stride" in argument:  # with heads of 20 a stride may be no multiple of 16
        return "i32:16" if size % 16 == 0 else "i32"
    return f"*{'fp32' if argument in _FLOAT32 else dtype}:16"
