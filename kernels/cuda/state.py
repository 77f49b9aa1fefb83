"""What a decode step does with slots: embed the past of each, convolve it, and advance its sums.

The state moves more bytes than all else, so it is read once a step and, with ``DELAY`` > 1,
written only every ``DELAY``-th step of an image: the keys and values since then wait in a small
buffer beside it. Each step adds them again, in the order they came, to what it read, so outputs
and sums are those of writing at once, to the last bit. An image's own step number says what waits,
never the call's, so a row does not depend on its neighbours, and a new image needs no clearing of
the buffer.

The ring of a short convolution needs no clearing either: the step number says which of its entries
are this image's. It has an entry more than the convolution looks back, so a step writes none that
it reads.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel
from scanline.kernels.cuda.matmul import normalise, write_statistics
from scanline.kernels.cuda.short_conv import distance, inside

OUTSIDE = 256  # id of a value that is not there


@triton.jit
def row_of(p_slots, p_positions, i_b, part, T: tl.constexpr, PARTS: tl.constexpr):
    """Give a row's slot, its step, and whether it has one: not for slot -1, nor past the end."""
    slot = tl.load(p_slots + i_b).to(tl.int64)
    position = tl.load(p_positions + slot, mask=slot >= 0, other=T)
    return slot, position * PARTS + part, position < T


@triton.jit(do_not_specialize=["part"])
def embed_kernel(
    p_slots, p_positions, p_canvas, p_label, p_sources, p_table, p_code, p_label_table,
    p_x, p_statistics, part,
    T: tl.constexpr, PARTS: tl.constexpr, FIRST: tl.constexpr, VALUES: tl.constexpr,
    PLACES: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr,
    OUTSIDE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sum a row of ``p_table`` for what stands at each place, and the codes of step and label."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b, i_n = tl.program_id(0), tl.program_id(1)
    slot, step, live = row_of(p_slots, p_positions, i_b, part, T, PARTS)
    if not live or step < FIRST:
        return
    o_p, o_col = tl.arange(0, BP), i_n * BN + tl.arange(0, BN)
    m_p, m_col = o_p < PLACES, o_col < D
    b_source = tl.load(p_sources + step.to(tl.int64) * PLACES + o_p, mask=m_p, other=-1)
    b_value = tl.load(p_canvas + slot * VALUES + b_source, mask=b_source >= 0, other=0)
    b_id = tl.where(b_source >= 0, b_value.to(tl.int32), OUTSIDE)
    o_entry = (o_p * (OUTSIDE + 1) + b_id) * SIZE
    b_each = tl.load(
        p_table + o_entry[:, None] + o_col[None, :],
        mask=m_p[:, None] & (o_col < SIZE)[None, :],
        other=0.0,
    )
    b_x = tl.sum(b_each, 0) + tl.load(p_code + step.to(tl.int64) * D + o_col, mask=m_col, other=0.0)
    if CLASSES > 0:
        label = tl.load(p_label + slot)
        label = tl.where(label < 0, CLASSES, label)
        b_x += tl.load(p_label_table + label * D + o_col, mask=m_col, other=0.0)
    o_row = i_b.to(tl.int64) + tl.arange(0, 1)
    tl.store(p_x + o_row * D + o_col, b_x, mask=m_col)
    write_statistics(p_statistics, o_row, b_x[None, :], i_n, D, BN)


@triton.jit
def convolve(
    b_now, p_weight, p_mine, b_step, m_live, o_col, m_col,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr, RING: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Convolve rows ``[rows, columns]`` with their rings, ``p_mine: [rows, 1]``, at their steps.

    What rows that do not live give has no meaning.
    """
    b_y = tl.load(p_weight + o_col, mask=m_col, other=0.0)[None, :] * b_now
    for tap in tl.static_range(1, 5):
        back = distance(tap, COLUMNS, PARTS)
        m_there = m_live & (b_step >= back) & inside(tap, b_step, COLUMNS, PARTS)
        o_then = ((b_step + RING - back) % RING * D)[:, None] + o_col[None, :]
        b_then = tl.load(p_mine + o_then, mask=m_there[:, None] & m_col[None, :], other=0.0)
        b_y += tl.load(p_weight + tap * D + o_col, mask=m_col, other=0.0)[None, :] * b_then
    return b_y


@triton.jit(do_not_specialize=["part"])
def convolve_kernel(
    p_slots, p_positions, p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight, p_ring, p_y,
    part, T: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, RING: tl.constexpr,
    D: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, BN: tl.constexpr,
    BN_STATISTICS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Convolve norm(x) with what the steps before had there: left, and three in the row above."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b = tl.program_id(0)
    slot, step, live = row_of(p_slots, p_positions, i_b, part, T, PARTS)
    if not live:
        return
    o_row = i_b.to(tl.int64) + tl.arange(0, 1)
    o_col = tl.program_id(1) * BN + tl.arange(0, BN)
    m_col = o_col < D
    b_x = tl.load(p_x + o_row[:, None] * D + o_col[None, :], mask=m_col[None, :], other=0.0)
    if NORM:
        b_x = normalise(
            b_x, p_statistics, p_norm_weight, p_norm_bias, o_row, o_col, m_col,
            D, BN_STATISTICS, EPS,
        )  # fmt: skip
    p_mine = p_ring + slot * (RING * D) + tl.arange(0, 1)[:, None]
    b_y = convolve(
        b_x, p_weight, p_mine, step + tl.arange(0, 1), o_row >= 0, o_col, m_col,
        COLUMNS, PARTS, RING, D,
    )  # fmt: skip
    tl.store(p_mine + (step % RING * D + o_col)[None, :], b_x, mask=m_col[None, :])
    tl.store(p_y + o_row[:, None] * D + o_col[None, :], b_y, mask=m_col[None, :])


@triton.jit
def advance(
    b_s, b_q, b_k, denominator, p_s, p_v, p_wait, p_o, turn, m_k, o_k, o_v, i_v,
    K: tl.constexpr, DELAY: tl.constexpr,
):  # fmt: skip
    """Add to columns ``i_v …`` of S what waits and what is new, and give those of o."""
    m_v = i_v + o_v < K
    m_s = m_k[:, None] & m_v[None, :]
    b_v = tl.load(p_v + i_v + o_v, mask=m_v, other=0.0).to(tl.float32)
    for i_w in tl.static_range(DELAY - 1):
        p_then = p_wait + 2 * i_w * K
        m_w = i_w < turn
        b_key = tl.load(p_then + o_k, mask=m_k & m_w, other=0.0).to(tl.float32)
        b_value = tl.load(p_then + K + i_v + o_v, mask=m_v & m_w, other=0.0).to(tl.float32)
        b_s += b_key[:, None] * b_value[None, :]
    b_s += b_k[:, None] * b_v[None, :]
    b_o = tl.sum(b_q[:, None] * b_s, 0) / denominator
    tl.store(p_o + i_v + o_v, b_o.to(p_o.dtype.element_ty), mask=m_v)
    if turn == DELAY - 1:
        # Threads may share an element: all have read it before one of them writes it.
        tl.debug_barrier()
        tl.store(p_s + i_v, b_s, mask=m_s, eviction_policy="evict_first")
    else:
        b_wait = b_v.to(p_wait.dtype.element_ty)
        tl.store(p_wait + (2 * turn + 1) * K + i_v + o_v, b_wait, mask=m_v)


@triton.jit(do_not_specialize=["part"])
def state_kernel(
    p_slots, p_positions, p_qkv, p_kv, p_z, p_waiting, p_o, part,
    T: tl.constexpr, PARTS: tl.constexpr, FIRST: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    DELAY: tl.constexpr, EPS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    UNROLLED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Advance one head of one row (eq. 18-20): S += k vᵀ, z += k, o = qᵀS / (qᵀz + ε)."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b, i_h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    slot, step, live = row_of(p_slots, p_positions, i_b, part, T, PARTS)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    i_sh = slot * H + i_h
    p_s = p_kv + i_sh * (K * K) + o_k[:, None] * K + o_v[None, :]
    # The slot alone says where the state is; ptxas has it wait for the position all the same.
    m_k = (o_k < K) & (slot >= 0)
    b_z = tl.load(p_z + i_sh * K + o_k, mask=m_k, other=0.0)
    m_first = m_k[:, None] & (o_v < K)[None, :]
    b_first = tl.load(p_s, mask=m_first, other=0.0, eviction_policy="evict_first")
    if not live or step < FIRST:
        return
    turn = (step - FIRST) % DELAY  # how many keys wait
    p_q = p_qkv + (i_b * 3 * H + i_h) * K
    p_k, p_v = p_q + H * K, p_q + 2 * H * K
    p_wait = p_waiting + i_sh * (2 * (DELAY - 1) * K)  # a key, a value, a key, …
    b_q = tl.load(p_q + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + o_k, mask=m_k, other=0.0).to(tl.float32)
    for i_w in tl.static_range(DELAY - 1):
        b_key = tl.load(p_wait + 2 * i_w * K + o_k, mask=m_k & (i_w < turn), other=0.0)
        b_z += b_key.to(tl.float32)
    b_z += b_k
    denominator = tl.sum(b_q * b_z, 0) + EPS
    p_mine = p_o + (i_b * H + i_h) * K
    if K <= UNROLLED * BV:
        for i_v in tl.static_range(0, K, BV):
            m_s = m_k[:, None] & (i_v + o_v < K)[None, :]
            b_s = b_first
            if i_v > 0:
                b_s = tl.load(p_s + i_v, mask=m_s, other=0.0, eviction_policy="evict_first")
            advance(
                b_s, b_q, b_k, denominator, p_s, p_v, p_wait, p_mine, turn, m_k, o_k, o_v, i_v,
                K, DELAY,
            )  # fmt: skip
    else:  # so many copies of it would compile for minutes
        for i_v in range(0, K, BV):
            m_s = m_k[:, None] & (i_v + o_v < K)[None, :]
            b_s = tl.load(p_s + i_v, mask=m_s, other=0.0, eviction_policy="evict_first")
            advance(
                b_s, b_q, b_k, denominator, p_s, p_v, p_wait, p_mine, turn, m_k, o_k, o_v, i_v,
                K, DELAY,
            )  # fmt: skip
    if turn == DELAY - 1:
        tl.debug_barrier()
        tl.store(p_z + i_sh * K + o_k, b_z, mask=m_k)
    else:
        tl.store(p_wait + 2 * turn * K + o_k, b_k.to(p_wait.dtype.element_ty), mask=m_k)
