"""Triton kernels of a decode step that use the state of slots: embedding, convolution, attention.

Most of the memory traffic is the attention state. It is read once per step but, if
``WRITE_INTERVAL`` > 1, written only every ``WRITE_INTERVAL``-th step of an image. In between, keys
and values are appended to a small buffer of pending entries. Each step adds the pending entries to
the state that it read, in order, so outputs and sums have the same bits as with a write per step.
The number of pending entries follows from the image's own step number. So a row does not depend on
other rows, and the buffer needs no clearing for a new image.

The ring buffer of a short convolution needs no clearing either, because the step number says which
entries belong to this image. It has one entry more than the convolution looks back, so a step never
writes an entry that it reads.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel
from scanline.kernels.cuda.matmul import normalise, write_statistics
from scanline.kernels.cuda.short_conv import tap_is_inside, tap_offset

OUTSIDE = 256  # id of a value outside the image


@triton.jit
def load_row(p_slots, p_positions, i_b, subpixel, T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr):
    """Return a row's slot, its step, and whether it is active (a slot, not yet finished)."""
    slot = tl.load(p_slots + i_b).to(tl.int64)
    position = tl.load(p_positions + slot, mask=slot >= 0, other=T)
    return slot, position * STEPS_PER_PIXEL + subpixel, position < T


@triton.jit
def embed_step(
    slot, step, i_b, i_n, p_canvas, p_label, p_context_index, p_value_table, p_step_table,
    p_label_table, p_x, p_statistics,
    VALUES: tl.constexpr, CONTEXT: tl.constexpr, EMBEDDING_SIZE: tl.constexpr, D: tl.constexpr,
    CLASSES: tl.constexpr, OUTSIDE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write tile ``i_n`` of row ``i_b`` of the residual stream: the embedding of a slot's step."""
    o_p, o_col = tl.arange(0, BP), i_n * BN + tl.arange(0, BN)
    m_p, m_col = o_p < CONTEXT, o_col < D
    b_source = tl.load(p_context_index + step.to(tl.int64) * CONTEXT + o_p, mask=m_p, other=-1)
    b_value = tl.load(p_canvas + slot * VALUES + b_source, mask=b_source >= 0, other=0)
    b_id = tl.where(b_source >= 0, b_value.to(tl.int32), OUTSIDE)
    o_entry = (o_p * (OUTSIDE + 1) + b_id) * EMBEDDING_SIZE
    b_each = tl.load(
        p_value_table + o_entry[:, None] + o_col[None, :],
        mask=m_p[:, None] & (o_col < EMBEDDING_SIZE)[None, :],
        other=0.0,
    )
    b_step = tl.load(p_step_table + step.to(tl.int64) * D + o_col, mask=m_col, other=0.0)
    b_x = tl.sum(b_each, 0) + b_step
    if CLASSES > 0:
        label = tl.load(p_label + slot)
        label = tl.where(label < 0, CLASSES, label)
        b_x += tl.load(p_label_table + label * D + o_col, mask=m_col, other=0.0)
    o_row = i_b.to(tl.int64) + tl.arange(0, 1)
    tl.store(p_x + o_row * D + o_col, b_x, mask=m_col)
    write_statistics(p_statistics, o_row, b_x[None, :], i_n, D, BN)


@triton.jit(do_not_specialize=["subpixel"])
def embed_kernel(
    p_slots, p_positions, p_canvas, p_label, p_context_index, p_value_table, p_step_table,
    p_label_table, p_x, p_statistics, subpixel,
    T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr, FIRST_STEP: tl.constexpr, VALUES: tl.constexpr,
    CONTEXT: tl.constexpr, EMBEDDING_SIZE: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr,
    OUTSIDE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Embed a step: sum the embeddings of its context values, its position and its label."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b, i_n = tl.program_id(0), tl.program_id(1)
    slot, step, active = load_row(p_slots, p_positions, i_b, subpixel, T, STEPS_PER_PIXEL)
    if not active or step < FIRST_STEP:
        return
    embed_step(
        slot, step, i_b, i_n, p_canvas, p_label, p_context_index, p_value_table, p_step_table,
        p_label_table, p_x, p_statistics,
        VALUES, CONTEXT, EMBEDDING_SIZE, D, CLASSES, OUTSIDE, BP, BN,
    )  # fmt: skip


@triton.jit
def convolve(
    b_now, p_weight, p_row_ring, b_step, m_active, o_col, m_col,
    WIDTH: tl.constexpr, RING: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Convolve rows ``[rows, columns]`` at their steps with their ring buffers.

    ``p_row_ring: [rows, 1]`` points to the buffers. Results of inactive rows are undefined.
    """
    b_y = tl.load(p_weight + o_col, mask=m_col, other=0.0)[None, :] * b_now
    for tap in tl.static_range(1, 5):
        offset = tap_offset(tap, WIDTH)
        m_tap = m_active & (b_step >= offset) & tap_is_inside(tap, b_step, WIDTH)
        o_entry = ((b_step + RING - offset) % RING * D)[:, None] + o_col[None, :]
        b_entry = tl.load(p_row_ring + o_entry, mask=m_tap[:, None] & m_col[None, :], other=0.0)
        b_y += tl.load(p_weight + tap * D + o_col, mask=m_col, other=0.0)[None, :] * b_entry
    return b_y


@triton.jit(do_not_specialize=["subpixel"])
def convolve_kernel(
    p_slots, p_positions, p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight, p_ring, p_y,
    subpixel,
    T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr, WIDTH: tl.constexpr, RING: tl.constexpr,
    D: tl.constexpr, EPS: tl.constexpr, BN: tl.constexpr, BN_STATISTICS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Convolve norm(x) with earlier steps: the left pixel and three in the row above."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b = tl.program_id(0)
    slot, step, active = load_row(p_slots, p_positions, i_b, subpixel, T, STEPS_PER_PIXEL)
    if not active:
        return
    o_row = i_b.to(tl.int64) + tl.arange(0, 1)
    o_col = tl.program_id(1) * BN + tl.arange(0, BN)
    m_col = o_col < D
    b_x = tl.load(p_x + o_row[:, None] * D + o_col[None, :], mask=m_col[None, :], other=0.0)
    b_x = normalise(
        b_x, p_statistics, p_norm_weight, p_norm_bias, o_row, o_col, m_col, D, BN_STATISTICS, EPS
    )
    p_row_ring = p_ring + slot * (RING * D) + tl.arange(0, 1)[:, None]
    b_y = convolve(
        b_x, p_weight, p_row_ring, step + tl.arange(0, 1), o_row >= 0, o_col, m_col,
        WIDTH, RING, D,
    )  # fmt: skip
    tl.store(p_row_ring + (step % RING * D + o_col)[None, :], b_x, mask=m_col[None, :])
    tl.store(p_y + o_row[:, None] * D + o_col[None, :], b_y, mask=m_col[None, :])


@triton.jit
def advance_columns(
    b_s, b_q, b_k, denominator, p_s, p_v, p_pending, p_o, n_pending, m_k, o_k, o_v, i_v,
    K: tl.constexpr, WRITE_INTERVAL: tl.constexpr,
):  # fmt: skip
    """Add the pending and the new entry to columns ``i_v …`` of S and store those of o."""
    m_v = i_v + o_v < K
    m_s = m_k[:, None] & m_v[None, :]
    b_v = tl.load(p_v + i_v + o_v, mask=m_v, other=0.0).to(tl.float32)
    for i_w in tl.static_range(WRITE_INTERVAL - 1):
        p_key = p_pending + 2 * i_w * K
        m_w = i_w < n_pending
        b_key = tl.load(p_key + o_k, mask=m_k & m_w, other=0.0).to(tl.float32)
        b_value = tl.load(p_key + K + i_v + o_v, mask=m_v & m_w, other=0.0).to(tl.float32)
        b_s += b_key[:, None] * b_value[None, :]
    b_s += b_k[:, None] * b_v[None, :]
    b_o = tl.sum(b_q[:, None] * b_s, 0) / denominator
    tl.store(p_o + i_v + o_v, b_o.to(p_o.dtype.element_ty), mask=m_v)
    if n_pending == WRITE_INTERVAL - 1:
        # Threads may share an element: all must read it before one writes it.
        tl.debug_barrier()
        tl.store(p_s + i_v, b_s, mask=m_s, eviction_policy="evict_first")
    else:
        b_new = b_v.to(p_pending.dtype.element_ty)
        tl.store(p_pending + (2 * n_pending + 1) * K + i_v + o_v, b_new, mask=m_v)


@triton.jit(do_not_specialize=["subpixel"])
def state_kernel(
    p_slots, p_positions, p_qkv, p_kv, p_z, p_pending, p_o, subpixel,
    T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr, FIRST_STEP: tl.constexpr, H: tl.constexpr,
    K: tl.constexpr, WRITE_INTERVAL: tl.constexpr, EPS: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, UNROLLED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Advance one head of one row (eq. 18-20): S += k vᵀ, z += k, o = qᵀS / (qᵀz + ε)."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b, i_h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    slot, step, active = load_row(p_slots, p_positions, i_b, subpixel, T, STEPS_PER_PIXEL)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    i_sh = slot * H + i_h
    p_s = p_kv + i_sh * (K * K) + o_k[:, None] * K + o_v[None, :]
    # The address needs the slot only, but ptxas makes the load wait for the position too.
    m_k = (o_k < K) & (slot >= 0)
    b_z = tl.load(p_z + i_sh * K + o_k, mask=m_k, other=0.0)
    m_first = m_k[:, None] & (o_v < K)[None, :]
    b_first = tl.load(p_s, mask=m_first, other=0.0, eviction_policy="evict_first")
    if not active or step < FIRST_STEP:
        return
    n_pending = (step - FIRST_STEP) % WRITE_INTERVAL
    p_q = p_qkv + (i_b * 3 * H + i_h) * K
    p_k, p_v = p_q + H * K, p_q + 2 * H * K
    p_pending += i_sh * (2 * (WRITE_INTERVAL - 1) * K)  # a key, a value, a key, …
    b_q = tl.load(p_q + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + o_k, mask=m_k, other=0.0).to(tl.float32)
    for i_w in tl.static_range(WRITE_INTERVAL - 1):
        b_key = tl.load(p_pending + 2 * i_w * K + o_k, mask=m_k & (i_w < n_pending), other=0.0)
        b_z += b_key.to(tl.float32)
    b_z += b_k
    denominator = tl.sum(b_q * b_z, 0) + EPS
    p_o += (i_b * H + i_h) * K
    if K <= UNROLLED * BV:
        for i_v in tl.static_range(0, K, BV):
            m_s = m_k[:, None] & (i_v + o_v < K)[None, :]
            b_s = b_first
            if i_v > 0:
                b_s = tl.load(p_s + i_v, mask=m_s, other=0.0, eviction_policy="evict_first")
            advance_columns(
                b_s, b_q, b_k, denominator, p_s, p_v, p_pending, p_o, n_pending, m_k, o_k, o_v, i_v,
                K, WRITE_INTERVAL,
            )  # fmt: skip
    else:  # unrolled, this would compile for minutes
        for i_v in range(0, K, BV):
            m_s = m_k[:, None] & (i_v + o_v < K)[None, :]
            b_s = tl.load(p_s + i_v, mask=m_s, other=0.0, eviction_policy="evict_first")
            advance_columns(
                b_s, b_q, b_k, denominator, p_s, p_v, p_pending, p_o, n_pending, m_k, o_k, o_v, i_v,
                K, WRITE_INTERVAL,
            )  # fmt: skip
    if n_pending == WRITE_INTERVAL - 1:
        tl.debug_barrier()
        tl.store(p_z + i_sh * K + o_k, b_z, mask=m_k)
    else:
        tl.store(p_pending + 2 * n_pending * K + o_k, b_k.to(p_pending.dtype.element_ty), mask=m_k)
