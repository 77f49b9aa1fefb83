"""Causal linear attention on a CUDA device: eq. 9-15 in chunks of 16 or 32 positions, in Triton.

The forward and the backward pass are one launch each. A program processes the chunks of one head in
order and keeps the state in registers, so that each position is read once and the states between
chunks are never written to memory. The backward pass saves q, k, v, o and the denominators. It
iterates forward for the gradient of q and in reverse for those of k and v, in parallel, and writes
the three side by side, in the layout of the projection that computed q, k and v.

φ, its derivative and all sums are computed in float32. Matrix products use the tensor cores in
three passes of TF32 (``tf32x3``), which is as exact as float32. In training, where q, k and v come
as one packed bfloat16 tensor without an initial state, products are in bfloat16. Tile sizes are
fixed, so that an image's result does not depend on the other images of the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scanline.kernels.attention.features import FeatureMap
from scanline.kernels.attention.naive import (
    EPS,
    AttentionState,
    check_shapes,
)
from scanline.kernels.cuda.attention_kernels import backward_kernel, forward_kernel
from scanline.kernels.cuda.available import MAX_HEAD_SIZE
from scanline.kernels.cuda.variants import KernelVariant
from scanline.kernels.custom_op import custom_op

# Initial and final states, which are None for packed q, k and v.
_STATES = ("kv", "z", "grad_kv", "grad_z", "initial_kv", "initial_z", "final_kv", "final_z")
_FLOAT32 = {"denominator", *_STATES}  # float32 for every dtype of the inputs


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
    dtype: torch.dtype, K: int, V: int, elu: bool, packed: bool, capability: tuple[int, int]
) -> _LaunchOptions:
    narrow, wide = packed and dtype == torch.bfloat16, max(K, V)
    constants: dict[str, object] = {
        "K": K, "V": V, "BT": 32 if narrow else 16, "BK": _padded(K), "BV": _padded(V),
        "BW": 16 if wide <= (16 if narrow else 32) else 32, "ELU": elu,
        "PRECISION": "bf16" if narrow else "tf32x3",
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
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None,
    final: tuple[Tensor, Tensor] | None, eps: float, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return o and the denominators ``[B, T, H]``, and write the ``final`` state."""
    (B, T, H, K), V = q.shape, v.shape[3]
    o = v.new_empty(v.shape)
    denominator = v.new_empty(v.shape[:3], dtype=torch.float32)
    options = _launch_options(q.dtype, K, V, elu, kv is None, _capability(q))
    _launch(
        forward_kernel, (B * H, _tiles(V, options)), options, q, k, v, kv, z, o, denominator,
        *(final or (None, None)), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H, eps,
    )  # fmt: skip
    return o, denominator


def _run_backward(
    grad_o: Tensor, grad_kv: Tensor | None, grad_z: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor | None, z: Tensor | None, o: Tensor, denominator: Tensor,
    initial: tuple[Tensor, Tensor] | None, elu: bool,
) -> Tensor:  # fmt: skip
    """Return the gradients of q, k and v ``[B, T, H (2 K + V)]``; write those of ``initial``."""
    (B, T, H, K), V = q.shape, v.shape[3]
    grad = q.new_empty(B, T, H * (2 * K + V), dtype=_common_dtype(q, k, v))
    options = _launch_options(q.dtype, K, V, elu, kv is None, _capability(q))
    programs = 2 * _tiles(K, options) + _tiles(V, options)
    _launch(
        backward_kernel, (B * H * programs,), options, q, k, v, kv, z, o, denominator,
        grad_o.contiguous(), grad_kv, grad_z, grad, *(initial or (None, None)),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H,
    )  # fmt: skip
    return grad


@custom_op("scanline::linear_attention")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return o, the denominators ``[B, T, H]`` and the final state."""
    final = kv.new_empty(kv.shape), z.new_empty(z.shape)
    q, k, v = _rows(q), _rows(k), _rows(v)
    o, denominator = _run_forward(q, k, v, kv.contiguous(), z.contiguous(), final, eps, elu)
    return o, denominator, *final


@custom_op("scanline::linear_attention_backward")
def _backward(
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor, z: Tensor, o: Tensor, denominator: Tensor, elu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k and v, side by side, and of the initial state."""
    initial = kv.new_empty(kv.shape), z.new_empty(z.shape)
    grad = _run_backward(
        grad_o, grad_kv.contiguous(), grad_z.contiguous(), _rows(q), _rows(k), _rows(v),
        kv.contiguous(), z.contiguous(), o, denominator, initial, elu,
    )  # fmt: skip
    return grad, *initial


@custom_op("scanline::packed_linear_attention")
def _packed(qkv: Tensor, eps: float, elu: bool) -> tuple[Tensor, Tensor]:
    """Return o and the denominators for ``qkv: [B, T, 3, H, K]`` without an initial state."""
    q, k, v = _rows(qkv).unbind(2)
    return _run_forward(q, k, v, None, None, None, eps, elu)


@custom_op("scanline::packed_linear_attention_backward")
def _packed_backward(
    grad_o: Tensor, qkv: Tensor, o: Tensor, denominator: Tensor, elu: bool
) -> Tensor:
    q, k, v = _rows(qkv).unbind(2)
    grad = _run_backward(
        grad_o, None, None, q, k, v, None, None, o, denominator, None, elu,
    )  # fmt: skip
    return grad.view(qkv.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, ctx.elu = inputs
    o, denominator, *_ = output
    ctx.save_for_backward(*tensors, o, denominator)
    ctx.mark_non_differentiable(denominator)


def _gradients(
    ctx: Any, grad_o: Tensor, _: Tensor, grad_kv: Tensor, grad_z: Tensor
) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors[:3]
    grad, kv, z = _backward(grad_o, grad_kv, grad_z, *ctx.saved_tensors, ctx.elu)
    parts = grad.split([x.shape[2] * x.shape[3] for x in inputs], 2)
    grads = [part.view(x.shape).to(x.dtype) for part, x in zip(parts, inputs, strict=True)]
    return *grads, kv, z, None, None


def _packed_gradients(ctx: Any, grad_o: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _packed_backward(grad_o, *ctx.saved_tensors, ctx.elu), None, None


_forward.register_autograd(_gradients, setup_context=_save_for_backward)
_packed.register_autograd(_packed_gradients, setup_context=_save_for_backward)


def _applies_elu(feature_map: FeatureMap | None, head_size: int) -> bool:
    """Return True if the kernels apply φ = elu + 1, False if the caller has applied it.

    Raises:
        ValueError: The head size or the feature map is not supported.
    """
    if head_size > MAX_HEAD_SIZE:
        raise ValueError(f"the head size must be at most {MAX_HEAD_SIZE}, not {head_size}")
    if feature_map not in ("elu", None):
        raise ValueError(f"the feature map must be 'elu' or None, not {feature_map!r}")
    return feature_map == "elu"


def triton_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: AttentionState | None = None,
    eps: float = EPS,
    feature_map: FeatureMap | None = None,
) -> tuple[Tensor, AttentionState]:
    """Compute ``linear_attention`` (eq. 9-12, gradients eq. 13-15) with Triton kernels.

    Args:
        q: Queries ``[B, T, H, K]`` in float32, float16 or bfloat16, with any strides.
        k: Keys, as ``q``.
        v: Values ``[B, T, H, V]``, as ``q``.
        initial_state: State before the first position; zeros if None.
        eps: Added to the denominators.
        feature_map: ``"elu"``, or None if it has been applied to ``q`` and ``k``.

    Returns:
        ``o``, with the shape and dtype of ``v``, and the final state in float32.

    Raises:
        ValueError: A shape is wrong, a head has more than ``available.MAX_HEAD_SIZE`` features, or
            the feature map is not supported.
    """
    check_shapes(q, k, v, initial_state)
    elu = _applies_elu(feature_map, max(q.shape[3], v.shape[3]))
    B, _, H, K = q.shape
    if initial_state is None:
        kv = q.new_zeros(B, H, K, v.shape[3], dtype=torch.float32)
        z = q.new_zeros(B, H, K, dtype=torch.float32)
    else:
        kv, z = (x.to(torch.float32) for x in initial_state)
    o, _, final_kv, final_z = _forward(q, k, v, kv, z, eps, elu)
    return o, AttentionState(final_kv, final_z)


def triton_packed_attention(
    qkv: Tensor, feature_map: FeatureMap | None = None, eps: float = EPS
) -> Tensor:
    """Compute ``triton_linear_attention`` of packed ``qkv: [B, T, 3, H, K]`` and return o.

    There is no initial state. The input and its gradient have the layout of the projection that
    computes q, k and v, so nothing is copied. For bfloat16 inputs, products are in bfloat16 and
    sums in float32.

    Raises:
        ValueError: The shape is wrong, a head has more than ``available.MAX_HEAD_SIZE`` features,
            or the feature map is not supported.
    """
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [B, T, 3, H, K], not {[*qkv.shape]}")
    o: Tensor = _packed(qkv, eps, _applies_elu(feature_map, qkv.shape[4]))[0]
    return o


def variants(arch: int) -> list[KernelVariant]:
    """List the kernel variants for ``sm_<arch>``: common and odd head sizes, all dtypes.

    Queries and keys of a prefill are after the feature map, and nothing is trained.
    """
    cases = [(dtype, size, True) for dtype in ("fp32", "bf16") for size in (16, 32, 64)]
    cases += [("fp16", 32, True), ("fp32", 32, False), ("fp32", 20, True), ("bf16", 20, True)]
    prefilled = [("bf16", 32, False), ("bf16", 64, False), ("fp32", 64, False)]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    found = []
    for dtype, size, elu in cases + prefilled:
        trained = (dtype, size, elu) in cases
        for packed in (False, True) if trained else (False,):
            options = _launch_options(dtypes[dtype], size, size, elu, packed, divmod(arch, 10))
            ends = _STATES if packed else ()
            for kernel in (forward_kernel, backward_kernel) if trained else (forward_kernel,):
                absent = {name: None for name in ends if name in kernel.arg_names}
                constants = options.constants_for(kernel) | absent
                name = f"attention_{kernel.__name__}/{dtype}/{size}"
                name += ("/packed" if packed else "") + ("" if elu else "/no feature map")
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
    if argument == "eps":
        return "fp32"
    if "stride" in argument:  # with heads of 20 a stride may be no multiple of 16
        return "i32:16" if size % 16 == 0 else "i32"
    return f"*{'fp32' if argument in _FLOAT32 else dtype}:16"
