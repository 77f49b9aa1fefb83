"""Causal linear attention on a CUDA device: eq. 9-15 in chunks of 16 or 32, in Triton.

One launch forward, one back: a program walks the chunks of one head with the state in registers,
so that a position's numbers are read once and the states between chunks never see memory. The
backward pass keeps q, k, v, o and the denominators; it walks forward for q's gradient and in
reverse for k's and v's, all at once, and leaves the three side by side, as the product that made q,
k and v wants them.

φ and its derivative are applied on the way in and out, in float32, as are all sums. Products use
the tensor cores, in three passes of tf32 (``tf32x3``), whose error is float32's own; but where q, k
and v come as one bfloat16 product, from no state on, as in training, they are bfloat16's. Tiles are
fixed, so that an image's result does not depend on its neighbours in the batch.
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

# States before and after, which are not there where q, k and v come packed.
_ENDS = ("kv", "z", "grad_kv", "grad_z", "initial_kv", "initial_z", "final_kv", "final_z")
_FLOAT32 = {"denominator", *_ENDS}  # pointers to float32 whatever the inputs' dtype


def _side(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


class _Plan(NamedTuple):
    """How a launch is compiled: its constants, warps to a program, registers to a thread.

    Of ``num_stages`` chunks one is at work, and the others are on their way from memory.
    """

    constants: dict[str, object]
    num_warps: int
    num_stages: int
    maxnreg: int

    def constants_of(self, kernel: Any) -> dict[str, object]:
        return {name: self.constants[name] for name in self.constants if name in kernel.arg_names}


def _plan(
    dtype: torch.dtype, K: int, V: int, elu: bool, packed: bool, capability: tuple[int, int]
) -> _Plan:
    narrow, wide = packed and dtype == torch.bfloat16, max(K, V)
    constants: dict[str, object] = {
        "K": K, "V": V, "BT": 32 if narrow else 16, "BK": _side(K), "BV": _side(V),
        "BW": 16 if wide <= (16 if narrow else 32) else 32, "ELU": elu,
        "PRECISION": "bf16" if narrow else "tf32x3",
    }  # fmt: skip
    if narrow and wide <= 32:  # no more than two warps have work
        # Six such programs fit a multiprocessor, which is all of an image's; but for code that
        # would spill a few registers then.
        six = capability < (10, 0) and K == V == constants["BK"]
        return _Plan(constants, 2, 3, 168 if six else 255)
    return _Plan(constants, 4, 2, 255)


def _capability(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)


def _launch(kernel: Any, grid: tuple[int, ...], plan: _Plan, *arguments: object) -> None:
    if grid[0] > 0:
        kernel[grid](
            *arguments, **plan.constants_of(kernel),
            num_warps=plan.num_warps, num_stages=plan.num_stages, maxnreg=plan.maxnreg,
        )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _widest(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)


def _tiles(size: int, plan: _Plan) -> int:
    return int(triton.cdiv(size, plan.constants["BW"]))


def _walk(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None,
    final: tuple[Tensor, Tensor] | None, eps: float, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Give o and the denominators ``[B, T, H]``, and fill in the ``final`` state."""
    (B, T, H, K), V = q.shape, v.shape[3]
    o = v.new_empty(v.shape)
    denominator = v.new_empty(v.shape[:3], dtype=torch.float32)
    plan = _plan(q.dtype, K, V, elu, kv is None, _capability(q))
    _launch(
        forward_kernel, (B * H, _tiles(V, plan)), plan, q, k, v, kv, z, o, denominator,
        *(final or (None, None)), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H, eps,
    )  # fmt: skip
    return o, denominator


def _walk_back(
    grad_o: Tensor, grad_kv: Tensor | None, grad_z: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor | None, z: Tensor | None, o: Tensor, denominator: Tensor,
    initial: tuple[Tensor, Tensor] | None, elu: bool,
) -> Tensor:  # fmt: skip
    """Give the gradients of q, k and v side by side ``[B, T, H (2 K + V)]``, fill ``initial``'s."""
    (B, T, H, K), V = q.shape, v.shape[3]
    grad = q.new_empty(B, T, H * (2 * K + V), dtype=_widest(q, k, v))
    plan = _plan(q.dtype, K, V, elu, kv is None, _capability(q))
    walks = 2 * _tiles(K, plan) + _tiles(V, plan)
    _launch(
        backward_kernel, (B * H * walks,), plan, q, k, v, kv, z, o, denominator,
        grad_o.contiguous(), grad_kv, grad_z, grad, *(initial or (None, None)),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], T, H,
    )  # fmt: skip
    return grad


@custom_op("scanline::linear_attention")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give o, the denominators ``[B, T, H]`` and the final state."""
    final = kv.new_empty(kv.shape), z.new_empty(z.shape)
    q, k, v = _rows(q), _rows(k), _rows(v)
    o, denominator = _walk(q, k, v, kv.contiguous(), z.contiguous(), final, eps, elu)
    return o, denominator, *final


@custom_op("scanline::linear_attention_backward")
def _backward(
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor, z: Tensor, o: Tensor, denominator: Tensor, elu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Give the gradients of q, k and v side by side, and of the initial state."""
    initial = kv.new_empty(kv.shape), z.new_empty(z.shape)
    grad = _walk_back(
        grad_o, grad_kv.contiguous(), grad_z.contiguous(), _rows(q), _rows(k), _rows(v),
        kv.contiguous(), z.contiguous(), o, denominator, initial, elu,
    )  # fmt: skip
    return grad, *initial


@custom_op("scanline::packed_linear_attention")
def _packed(qkv: Tensor, eps: float, elu: bool) -> tuple[Tensor, Tensor]:
    """Give o and the denominators of ``qkv: [B, T, 3, H, K]``, from no state on."""
    q, k, v = _rows(qkv).unbind(2)
    return _walk(q, k, v, None, None, None, eps, elu)


@custom_op("scanline::packed_linear_attention_backward")
def _packed_backward(
    grad_o: Tensor, qkv: Tensor, o: Tensor, denominator: Tensor, elu: bool
) -> Tensor:
    q, k, v = _rows(qkv).unbind(2)
    grad = _walk_back(
        grad_o, None, None, q, k, v, None, None, o, denominator, None, elu,
    )  # fmt: skip
    return grad.view(qkv.shape)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        v.new_empty(v.shape),
        kv.new_empty(v.shape[:3]),
        kv.new_empty(kv.shape),
        z.new_empty(z.shape),
    )


@_backward.register_fake
def _(
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor, z: Tensor, o: Tensor, denominator: Tensor, elu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    (B, T, H, K), V = q.shape, v.shape[3]
    grad = q.new_empty(B, T, H * (2 * K + V), dtype=_widest(q, k, v))
    return grad, kv.new_empty(kv.shape), z.new_empty(z.shape)


@_packed.register_fake
def _(qkv: Tensor, eps: float, elu: bool) -> tuple[Tensor, Tensor]:
    B, T, _, H, K = qkv.shape
    return qkv.new_empty(B, T, H, K), qkv.new_empty(B, T, H, dtype=torch.float32)


@_packed_backward.register_fake
def _(grad_o: Tensor, qkv: Tensor, o: Tensor, denominator: Tensor, elu: bool) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
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
    of = [part.view(x.shape).to(x.dtype) for part, x in zip(parts, inputs, strict=True)]
    return *of, kv, z, None, None


def _packed_gradients(ctx: Any, grad_o: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _packed_backward(grad_o, *ctx.saved_tensors, ctx.elu), None, None


_forward.register_autograd(_gradients, setup_context=_keep)
_packed.register_autograd(_packed_gradients, setup_context=_keep)


def _knows(feature_map: FeatureMap | None, widest: int) -> bool:
    """Whether it is φ that the kernels apply, and not one applied before."""
    if widest > MAX_HEAD_SIZE:
        raise ValueError(f"the head size must be at most {MAX_HEAD_SIZE}, not {widest}")
    if feature_map not in ("elu", None):
        raise ValueError(f"the kernels' feature map is 'elu', or None, not {feature_map!r}")
    return feature_map == "elu"


def triton_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: AttentionState | None = None,
    eps: float = EPS,
    feature_map: FeatureMap | None = None,
) -> tuple[Tensor, AttentionState]:
    """Compute eq. 9-12 with Triton kernels, and eq. 13-15 backwards; as ``linear_attention``.

    ``q, k: [B, T, H, K]``, ``v: [B, T, H, V]``, in float32, float16 or bfloat16 and with any
    strides; returns ``o`` like ``v`` and the final state in float32. The feature map is ``elu``, or
    None for one already applied. Raises ``ValueError`` on wrong shapes, heads of more than
    ``available.MAX_HEAD_SIZE`` features, or another feature map.
    """
    check_shapes(q, k, v, initial_state)
    elu = _knows(feature_map, max(q.shape[3], v.shape[3]))
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
    """Compute ``triton_linear_attention`` of ``qkv: [B, T, 3, H, K]`` from no state on, o alone.

    One product's output in, one gradient for it back, neither put together nor taken apart. In
    bfloat16 all is multiplied in that, and summed in float32. Raises ``ValueError`` on another
    shape or feature map, or heads of more than ``available.MAX_HEAD_SIZE`` features.
    """
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [B, T, 3, H, K], not {[*qkv.shape]}")
    o: Tensor = _packed(qkv, eps, _knows(feature_map, qkv.shape[4]))[0]
    return o


def variants(arch: int) -> list[KernelVariant]:
    """List what is launched on ``sm_<arch>``: usual heads and dtypes, an odd head, features."""
    cases = [(dtype, size, True) for dtype in ("fp32", "bf16") for size in (16, 32, 64)]
    cases += [("fp16", 32, True), ("fp32", 32, False), ("fp32", 20, True), ("bf16", 20, True)]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    found = []
    for dtype, size, elu in cases:
        for packed in (False, True):
            plan = _plan(dtypes[dtype], size, size, elu, packed, divmod(arch, 10))
            ends = _ENDS if packed else ()
            for kernel in (forward_kernel, backward_kernel):
                absent = {name: None for name in ends if name in kernel.arg_names}
                constants = plan.constants_of(kernel) | absent
                name = f"attention_{kernel.__name__}/{dtype}/{size}"
                name += ("/packed" if packed else "") + ("" if elu else "/features given")
                types = {
                    argument: _type(argument, dtype, size)
                    for argument in kernel.arg_names
                    if argument not in constants
                }
                options = (plan.num_warps, plan.num_stages, plan.maxnreg)
                found.append(KernelVariant(name, kernel, types, constants, *options))
    return found


def _type(argument: str, dtype: str, size: int) -> str:
    if argument in ("T", "H"):
        return "i32"
    if argument == "eps":
        return "fp32"
    if "stride" in argument:  # of a head of 20, no stride need be a multiple of 16
        return "i32:16" if size % 16 == 0 else "i32"
    return f"*{'fp32' if argument in _FLOAT32 else dtype}:16"
