"""Causal linear attention on a CUDA device: eq. 9-15 in chunks of 32, in Triton.

Two launches forward: one program a head and tile of the state walks the chunks and writes the
state before each, then all outputs are computed at once, one program a chunk. The one-launch form
that keeps the state in registers from chunk to chunk moves fewer bytes (at K = V = 32 in float32 a
chunk reads and writes 16 KB, and its state 8 KB more), but products in float32 precision leave it
no registers, and it has only B × H programs to fill a GPU with. Here there are T / 32 times as
many, so that one image is as quick as its bytes allow. The states are summed again for the
backward pass, which keeps only q, k, v, o and the denominators.

φ and its derivative are applied on the way in and out, in float32, as are all sums. Products use
the tensor cores in three passes of tf32 (``tf32x3``), whose error is float32's own; a single pass
would lose half of the digits. Tiles are fixed, so that an image's result does not depend on its
neighbours in the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.attention.definitions import (
    CHUNK,
    EPS,
    AttentionState,
    check_shapes,
)
from scanline.kernels.attention.features import FeatureMap
from scanline.kernels.cuda.chunks import (
    backward_k_kernel,
    backward_q_kernel,
    backward_v_kernel,
    forward_kernel,
    states_kernel,
)
from scanline.kernels.cuda.variants import Variant

NUM_WARPS, NUM_STAGES, MAX_REGISTERS = 2, 2, 255
_FLOAT32 = {  # pointers to float32 whatever the inputs' dtype
    "denominator", "grad_denominator", "kv", "z", "initial_kv", "initial_z", "final_kv", "final_z",
}  # fmt: skip


def _tile(size: int) -> int:
    return 16 if size <= 16 else 32


def _step(size: int) -> int:
    """Give how much of a head is summed over at once: more than this, in a loop, would spill."""
    return 32 if size == 32 else 16


def _constants(kernel: Any, K: int, V: int, elu: bool) -> dict[str, object]:
    over_k = kernel in (forward_kernel, backward_v_kernel)
    over_v = kernel in (backward_q_kernel, backward_k_kernel)
    return {
        "K": K, "V": V, "BT": CHUNK,
        "BK": _step(K) if over_k else _tile(K), "BV": _step(V) if over_v else _tile(V),
        "ELU": elu, "PRECISION": "tf32x3",
    }  # fmt: skip


def _launch(kernel: Any, grid: tuple[int, int], *arguments: object, **constants: object) -> None:
    if grid[0] > 0:
        kernel[grid](
            *arguments, **constants,
            num_warps=NUM_WARPS, num_stages=NUM_STAGES, maxnreg=MAX_REGISTERS,
        )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class _Sizes:
    """What the launches of one call have in common."""

    def __init__(self, q: Tensor, v: Tensor, elu: bool) -> None:
        self.B, self.T, self.H, self.K = q.shape
        self.V = v.shape[3]
        self.elu = elu
        self.chunks = triton.cdiv(self.T, CHUNK)
        self.tiles_k = triton.cdiv(self.K, _tile(self.K))
        self.tiles_v = triton.cdiv(self.V, _tile(self.V))

    def states(
        self, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, weights: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sum the state at every chunk from ``kv, z`` on; with weights, the gradients', reversed.

        Returns ``[B, H, chunks, K, V]``, ``[B, H, chunks, K]`` and the state at the end.
        """
        chunk_kv = kv.new_empty(self.B, self.H, self.chunks, self.K, self.V)
        chunk_z = kv.new_empty(self.B, self.H, self.chunks, self.K)
        final_kv, final_z = kv.new_empty(kv.shape), z.new_empty(z.shape)
        _launch(
            states_kernel, (self.B * self.H, self.tiles_k * self.tiles_v),
            k, v, *(weights or (None, None)), kv, z, chunk_kv, chunk_z, final_kv, final_z,
            *k.stride()[:3], *v.stride()[:3], self.T, self.H,
            **_constants(states_kernel, self.K, self.V, self.elu), REVERSE=weights is not None,
        )  # fmt: skip
        return chunk_kv, chunk_z, final_kv, final_z

    def outputs(self, kernel: Any, tiles: int, *arguments: object) -> None:
        """Launch one of the kernels that take every chunk on its own."""
        constants = _constants(kernel, self.K, self.V, self.elu)
        _launch(kernel, (self.B * self.H * self.chunks, tiles), *arguments, **constants)


@torch.library.custom_op("scanline::linear_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give o, the denominators ``[B, T, H]`` and the final state."""
    sizes = _Sizes(q, v, elu)
    q, k, v = _rows(q), _rows(k), _rows(v)
    o = v.new_empty(v.shape)
    denominator = kv.new_empty(v.shape[:3])
    chunk_kv, chunk_z, final_kv, final_z = sizes.states(k, v, kv, z, None)
    sizes.outputs(
        forward_kernel, sizes.tiles_v, q, k, v, chunk_kv, chunk_z, o, denominator,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], sizes.T, sizes.H, eps,
    )  # fmt: skip
    return o, denominator, final_kv, final_z


@torch.library.custom_op("scanline::linear_attention_backward", mutates_args=())
def _backward(
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor, q: Tensor, k: Tensor, v: Tensor,
    kv: Tensor, z: Tensor, o: Tensor, denominator: Tensor, elu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Give the gradients of q, k, v and the initial state."""
    sizes = _Sizes(q, v, elu)
    q, k, v = _rows(q), _rows(k), _rows(v)
    grad_o, grad_kv, grad_z = grad_o.contiguous(), grad_kv.contiguous(), grad_z.contiguous()
    grad_q, grad_k, grad_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    grad_denominator = denominator.new_empty(denominator.shape)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    T, H = sizes.T, sizes.H
    chunk_kv, chunk_z, _, _ = sizes.states(k, v, kv, z, None)
    sizes.outputs(
        backward_q_kernel, sizes.tiles_k, q, k, v, chunk_kv, chunk_z, o, denominator, grad_o,
        grad_q, grad_denominator, *strides, T, H,
    )  # fmt: skip
    chunk_kv, chunk_z, initial_kv, initial_z = sizes.states(
        q, grad_o, grad_kv, grad_z, (denominator, grad_denominator)
    )
    sizes.outputs(
        backward_k_kernel, sizes.tiles_k, q, k, v, chunk_kv, chunk_z, denominator, grad_o,
        grad_denominator, grad_k, *strides, T, H,
    )  # fmt: skip
    sizes.outputs(
        backward_v_kernel, sizes.tiles_v, q, k, chunk_kv, denominator, grad_o, grad_v,
        *strides[:6], T, H,
    )  # fmt: skip
    return grad_q, grad_k, grad_v, initial_kv, initial_z


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x = [tensor.new_empty(tensor.shape) for tensor in (q, k, v, kv, z)]
    return x[0], x[1], x[2], x[3], x[4]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, kv, z, _, ctx.elu = inputs
    o, denominator, _, _ = output
    ctx.save_for_backward(q, k, v, kv, z, o, denominator)
    ctx.mark_non_differentiable(denominator)


def _gradients(
    ctx: Any, grad_o: Tensor, grad_denominator: Tensor, grad_kv: Tensor, grad_z: Tensor
) -> tuple[Tensor | None, ...]:
    return *_backward(grad_o, grad_kv, grad_z, *ctx.saved_tensors, ctx.elu), None, None


_forward.register_autograd(_gradients, setup_context=_keep)


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
    None for one already applied. Raises ``ValueError`` on wrong shapes or another feature map.
    """
    check_shapes(q, k, v, initial_state)
    if feature_map not in ("elu", None):
        raise ValueError(f"the kernels' feature map is 'elu', or None, not {feature_map!r}")
    B, _, H, K = q.shape
    if initial_state is None:
        kv = q.new_zeros(B, H, K, v.shape[3], dtype=torch.float32)
        z = q.new_zeros(B, H, K, dtype=torch.float32)
    else:
        kv, z = (x.to(torch.float32).contiguous() for x in initial_state)
    o, _, final_kv, final_z = _forward(q, k, v, kv, z, eps, feature_map == "elu")
    return o, AttentionState(final_kv, final_z)


def variants() -> list[Variant]:
    """List what is launched: the usual head sizes and dtypes, features given, an odd head."""
    cases = [(dtype, size, True) for dtype in ("fp32", "bf16") for size in (16, 32, 64, 128)]
    cases += [("fp16", 32, True), ("fp32", 32, False), ("fp32", 20, True), ("bf16", 20, True)]
    launches: list[tuple[Any, dict[str, object]]] = [
        (states_kernel, {"REVERSE": False, "denominator": None, "grad_denominator": None}),
        (states_kernel, {"REVERSE": True}),
        (forward_kernel, {}), (backward_q_kernel, {}), (backward_k_kernel, {}),
        (backward_v_kernel, {}),
    ]  # fmt: skip
    found = []
    for dtype, size, elu in cases:
        for kernel, extra in launches:
            constants = _constants(kernel, size, size, elu) | extra
            name = f"{kernel.__name__}/{dtype}/{size}"
            name += "/reverse" if extra.get("REVERSE") else ""
            name += "" if elu else "/features given"
            types = {
                argument: _type(argument, dtype, size)
                for argument in kernel.arg_names
                if argument not in constants
            }
            options = (NUM_WARPS, NUM_STAGES, MAX_REGISTERS)
            found.append(Variant(name, kernel, types, constants, *options))
    return found


def _type(argument: str, dtype: str, size: int) -> str:
    if argument in ("T", "H"):
        return "i32"
    if argument == "eps":
        return "fp32"
    if "stride" in argument:  # of a head of 20, no stride need be a multiple of 16
        return "i32:16" if size % 16 == 0 else "i32"
    return f"*{'fp32' if argument in _FLOAT32 else dtype}:16"
