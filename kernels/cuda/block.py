"""All that a layer does between two states, as one kernel: the products, norms and convolutions.

A program has whole rows of the stream. It adds the attention's output product, normalises, sends
the rows through the feed-forward network, whose hidden features never leave it, normalises again,
and gives the next layer's q, k and v: weights pass by, rows stay where they are, and what registers
cannot hold meanwhile waits in memory near by. Of a layer's five to seven kernels two are left.
Every sum has one order, whatever stands in the other rows.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from scanline.kernels.cuda.launch import Launch
from scanline.kernels.cuda.matrix import BM, NORM_EPS, activate, below, feature, product
from scanline.kernels.cuda.overlap import follow
from scanline.kernels.cuda.sizes import Sizes
from scanline.kernels.cuda.state import convolve, row_of

WIDEST = 256  # features of a row that a program can hold
HIDDEN, STAGES = 32, 4  # features that pass by at a time, and how many such are under way
CHUNK = 16  # columns that are convolved at a time
NARROW = 128  # features of rows that four warps hold, where two programs share a multiprocessor
SHARED = 161 << 10  # bytes of shared memory that a block of threads must have for wider ones


@triton.jit
def norm_rows(b_x, p_weight, p_bias, o_d, m_d, D: tl.constexpr, EPS: tl.constexpr):
    """Give the layer norm of whole rows ``[rows, D]``, 0 beyond their features."""
    b_x = tl.where(m_d[None, :], b_x, 0.0)
    b_away = tl.where(m_d[None, :], b_x - (tl.sum(b_x, 1) / D)[:, None], 0.0)
    b_rstd = tl.rsqrt(tl.sum(b_away * b_away, 1) / D + EPS)
    b_scale = tl.load(p_weight + o_d, mask=m_d, other=0.0)
    b_shift = tl.load(p_bias + o_d, mask=m_d, other=0.0)
    return b_away * b_rstd[:, None] * b_scale[None, :] + b_shift[None, :]


@triton.jit
def see(
    b_n, p_n, p_u, p_conv, p_ring, p_slots, p_positions, part, o_row, o_d, m_d,
    T: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, RING: tl.constexpr,
    D: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Give what the next product sees of normalised rows: convolved where there is a convolution.

    That is done through memory, some columns at a time: rows and taps are more than registers hold.
    """
    if p_conv is not None:
        o_x = o_row[:, None] * D + o_d[None, :]
        tl.store(p_n + o_x, b_n, mask=m_d[None, :])
        tl.debug_barrier()
        b_slot, b_step, m_live = row_of(p_slots, p_positions, o_row, part, T, PARTS)
        p_mine = p_ring + (b_slot * (RING * D))[:, None]
        for i_c in range(0, D, BC):
            o_c = i_c + tl.arange(0, BC)
            m_c = below(o_c, D, BC)
            o_now = o_row[:, None] * D + o_c[None, :]
            b_now = tl.load(p_n + o_now, mask=m_c[None, :], other=0.0)
            b_c = convolve(b_now, p_conv, p_mine, b_step, m_live, o_c, m_c, COLUMNS, PARTS, RING, D)
            o_ring = (b_step % RING * D)[:, None] + o_c[None, :]
            tl.store(p_mine + o_ring, b_now, mask=m_live[:, None] & m_c[None, :])
            tl.store(p_u + o_now, b_c.to(p_u.dtype.element_ty), mask=m_c[None, :])
        tl.debug_barrier()
        b_u = tl.load(p_u + o_x, mask=m_d[None, :], other=0.0)
    else:
        b_u = b_n.to(p_u.dtype.element_ty)
    return b_u


@triton.jit
def outputs_of(
    b_x, p_weight, p_bias, o_out, m_out, o_d, m_d, D: tl.constexpr,
):  # fmt: skip
    """Give outputs ``o_out`` of the map W x + b of rows, in float32: ``p_weight: [outputs, D]``."""
    b_w = tl.load(
        p_weight + o_out[None, :] * D + o_d[:, None],
        mask=m_out[None, :] & m_d[:, None],
        other=0.0,
    )
    b_y = tl.dot(b_x, b_w, input_precision="ieee")
    return b_y + tl.load(p_bias + o_out, mask=m_out, other=0.0)[None, :]


@triton.jit(do_not_specialize=["part"])
def block_kernel(
    p_slots, p_positions, p_o, p_x, p_n, p_u, p_qkv,
    p_out_weight, p_out_bias, p_linear1_weight, p_linear1_bias, p_linear2_weight, p_linear2_bias,
    p_middle_weight, p_middle_bias, p_after_weight, p_after_bias, p_final_weight, p_final_bias,
    p_middle_conv, p_middle_ring, p_next_conv, p_next_ring, p_next_weight, p_next_bias, part,
    T: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, RING: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, PRE: tl.constexpr, ACTIVATION: tl.constexpr,
    EPS: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    BC: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Take ``p_o`` and the stream ``p_x``, in its place, on to the next layer's ``p_qkv``.

    The norm in the middle is before the feed-forward network, the one after it before what follows,
    which with post-norm (``PRE`` false) is what goes on in the stream too. The last layer has no
    next: its norm, with post-norm the final one behind it, is left in the stream for the head.
    """
    if OVERLAP:
        follow()
    first, o_row = tl.program_id(0).to(tl.int64) * BM, tl.arange(0, BM)
    p_slots += first
    if tl.max(tl.load(p_slots + o_row), 0) < 0:
        return
    p_x, p_o, p_qkv = p_x + first * D, p_o + first * D, p_qkv + first * 3 * D
    p_n, p_u = p_n + first * D, p_u + first * D
    o_d, o_n = tl.arange(0, BD), tl.arange(0, BN)
    m_d = below(o_d, D, BD)
    o_x = o_row[:, None] * D + o_d[None, :]

    b_y = tl.load(p_x + o_x, mask=m_d[None, :], other=0.0)
    b_y += tl.load(p_out_bias + o_d, mask=m_d, other=0.0)[None, :]
    b_y = product(b_y, p_o, p_o, p_o, p_o, p_out_weight, o_row, o_d, m_d, D, False, EPS, BK, BD)
    if PRE:
        tl.store(p_x + o_x, b_y, mask=m_d[None, :])
    b_n = norm_rows(b_y, p_middle_weight, p_middle_bias, o_d, m_d, D, EPS)
    if not PRE:
        b_y = b_n
        if p_middle_conv is not None:
            tl.store(p_x + o_x, b_n, mask=m_d[None, :])
    b_u = see(
        b_n, p_n, p_u, p_middle_conv, p_middle_ring, p_slots, p_positions, part, o_row, o_d, m_d,
        T, PARTS, COLUMNS, RING, D, BC,
    )  # fmt: skip

    if PRE or p_middle_conv is not None:  # the registers were needed meanwhile
        tl.debug_barrier()
        b_y = tl.load(p_x + o_x, mask=m_d[None, :], other=0.0)
    b_y += tl.load(p_linear2_bias + o_d, mask=m_d, other=0.0)[None, :]
    for i_n in range(0, FF, BN):
        o_f = i_n + o_n
        m_f = below(o_f, FF, BN)
        b_h = outputs_of(b_u, p_linear1_weight, p_linear1_bias, o_f, m_f, o_d, m_d, D)
        b_w = tl.load(
            p_linear2_weight + o_d[None, :] * FF + o_f[:, None],
            mask=m_d[None, :] & m_f[:, None],
            other=0.0,
        )
        b_y = tl.dot(activate(b_h, ACTIVATION).to(b_w.dtype), b_w, b_y, input_precision="ieee")
    if PRE and p_next_weight is not None:
        tl.store(p_x + o_x, b_y, mask=m_d[None, :])
    b_n = norm_rows(b_y, p_after_weight, p_after_bias, o_d, m_d, D, EPS)
    if p_next_weight is None:
        if p_final_weight is not None:
            b_n = norm_rows(b_n, p_final_weight, p_final_bias, o_d, m_d, D, EPS)
        tl.store(p_x + o_x, b_n, mask=m_d[None, :])
    else:
        if not PRE:
            tl.store(p_x + o_x, b_n, mask=m_d[None, :])
        b_u = see(
            b_n, p_n, p_u, p_next_conv, p_next_ring, p_slots, p_positions, part, o_row, o_d, m_d,
            T, PARTS, COLUMNS, RING, D, BC,
        )  # fmt: skip
        for i_n in range(0, 3 * D, BN):
            o_f = i_n + o_n
            m_f = below(o_f, 3 * D, BN)
            b_f = outputs_of(b_u, p_next_weight, p_next_bias, o_f, m_f, o_d, m_d, D)
            b_f = tl.where((o_f < 2 * D)[None, :], feature(b_f), b_f)
            tl.store(
                p_qkv + o_row[:, None] * (3 * D) + o_f[None, :],
                b_f.to(p_qkv.dtype.element_ty),
                mask=m_f[None, :],
            )


def takes(s: Sizes, layer: int) -> bool:
    """Whether what follows this layer's state can be one kernel: its products have one dtype."""
    first = 0 if not s.pre_norm else layer  # post-norm's stream is normalised by all or by none
    return all(s.dtype_of(f"{i}.linear1") == s.dtype for i in range(first, layer + 1))


def refusal(s: Sizes, shared: int | None) -> str | None:
    """Say why no layer can be a block, None where some can.

    ``shared`` is what memory a device's block of threads may share, None for the interpreter, which
    computes in float32; a device has no room for that.
    """
    if s.d_model > WIDEST:
        return f"its rows are of {s.d_model} features, and those of blocks of {WIDEST} at most"
    if shared is not None and s.dtype == torch.float32:
        return "it computes in float32, and blocks in bf16"
    if shared is not None and s.d_model > NARROW and shared < SHARED:
        return (
            f"rows of {s.d_model} features take {SHARED:,} bytes of shared memory, not {shared:,}"
        )
    if not takes(s, s.layers - 1):
        return "its products are float32 in one layer and bf16 in others"
    return None


def block(
    s: Sizes, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], layer: int,
    stream: Tensor,
) -> Launch:  # fmt: skip
    """Lay out what follows a layer's state on the ``stream``, up to the next one's q, k and v."""
    last = layer == s.layers - 1
    middle, after = ("norm2", "norm1") if s.pre_norm else ("norm1", "norm2")
    behind = layer + s.pre_norm  # whose norm it is that comes after
    norms = {"middle": f"{layer}.{middle}", "after": f"{behind}.{after}"}
    if last:
        norms |= {"after": "norm"} if s.pre_norm else {"final": "norm"}
    maps = {"out": f"{layer}.out", "linear1": f"{layer}.linear1", "linear2": f"{layer}.linear2"}
    if not last:
        maps["next"] = f"{layer + 1}.qkv"
    arguments: dict[str, Tensor | str | None] = {
        name: None for name in block_kernel.arg_names if name.startswith("p_")
    }
    arguments |= {
        f"p_{short}_{kind}": weights[f"{name}.{kind}"]
        for short, name in (*norms.items(), *maps.items())
        for kind in ("weight", "bias")
    }
    if s.short_conv:
        rings = {"middle": (layer, 2)} if last else {"middle": (layer, 2), "next": (layer + 1, 1)}
        for short, (of, half) in rings.items():
            arguments[f"p_{short}_conv"] = weights[f"{of}.conv{half}.weight"]
            arguments[f"p_{short}_ring"] = buffers["ring"][2 * of + half - 1]
    arguments |= {f"p_{name}": buffers[name] for name in ("slots", "positions", "o", "qkv")}
    arguments |= {"p_n": buffers["convolved"], "p_u": buffers["seen"]}
    side = max(16, triton.next_power_of_2(s.d_model))
    return Launch(
        f"{layer}.block", block_kernel, arguments | {"p_x": stream, "part": "part"},
        {
            "T": s.pixels, "PARTS": s.parts, "COLUMNS": s.columns, "RING": s.ring,
            "D": s.d_model, "FF": s.d_ff, "PRE": s.pre_norm,
            "ACTIVATION": "gelu" if s.gelu else "relu", "EPS": NORM_EPS,
            "BM": BM, "BD": side, "BK": min(side, HIDDEN), "BN": HIDDEN,
            "BC": min(side, CHUNK),
        },
        rows=BM, num_warps=4 if side <= NARROW else 8, num_stages=STAGES,
    )  # fmt: skip
