"""Triton kernels of a prefill, whose rows are the first steps of several images.

Row ``i`` of a pass is step ``i % steps`` of image ``i // steps``. ``steps`` is the same for all
images of a pass and a multiple of the matrix products' row tile, so that no tile holds rows of two
images. ``p_slots`` has the slot of each row, -1 from the end of the image's known pixels on.

The kernels share their arithmetic with those of a decode step (``state.py``, ``sampling.py``).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel
from scanline.kernels.cuda.matmul import normalise
from scanline.kernels.cuda.sampling import sample_and_score_categorical, sample_and_score_mixture
from scanline.kernels.cuda.short_conv import tap_is_inside, tap_offset
from scanline.kernels.cuda.state import embed_step


@triton.jit(do_not_specialize=["steps"])
def prefill_embed_kernel(
    p_slots, p_canvas, p_label, p_context_index, p_value_table, p_step_table, p_label_table, p_x,
    p_statistics, steps,
    FIRST_STEP: tl.constexpr, VALUES: tl.constexpr, CONTEXT: tl.constexpr,
    EMBEDDING_SIZE: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, OUTSIDE: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Embed the step of one row."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b, i_n = tl.program_id(0), tl.program_id(1)
    slot, step = tl.load(p_slots + i_b).to(tl.int64), i_b % steps
    if slot < 0 or step < FIRST_STEP:
        return
    embed_step(
        slot, step, i_b, i_n, p_canvas, p_label, p_context_index, p_value_table, p_step_table,
        p_label_table, p_x, p_statistics,
        VALUES, CONTEXT, EMBEDDING_SIZE, D, CLASSES, OUTSIDE, BP, BN,
    )  # fmt: skip


@triton.jit(do_not_specialize=["steps"])
def prefill_convolve_kernel(
    p_slots, p_lengths, p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight, p_ring, p_y,
    steps,
    WIDTH: tl.constexpr, RING: tl.constexpr, D: tl.constexpr, EPS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BN_STATISTICS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Convolve norm(x) of ``BM`` rows, and write the last ``RING`` steps to the slot's buffer.

    ``p_lengths`` has the number of known steps of each image.
    """
    if OVERLAP:
        wait_for_previous_kernel()
    first = tl.program_id(0).to(tl.int64) * BM
    length = tl.load(p_lengths + first // steps)
    slot = tl.load(p_slots + first // steps * steps).to(tl.int64)
    b_step, o_row = first % steps + tl.arange(0, BM), first + tl.arange(0, BM)
    m_row = b_step < length
    o_col = tl.program_id(1) * BN + tl.arange(0, BN)
    m_col = o_col < D
    b_y = tl.zeros([BM, BN], tl.float32)
    for tap in tl.static_range(5):
        offset = tap_offset(tap, WIDTH)
        m_tap = m_row & (b_step >= offset) & tap_is_inside(tap, b_step, WIDTH)
        o_source = tl.where(m_tap, o_row - offset, o_row)
        m_entry = m_tap[:, None] & m_col[None, :]
        b_x = tl.load(p_x + o_source[:, None] * D + o_col[None, :], mask=m_entry, other=0.0)
        b_x = normalise(
            b_x, p_statistics, p_norm_weight, p_norm_bias, o_source, o_col, m_col,
            D, BN_STATISTICS, EPS,
        )  # fmt: skip
        b_x = tl.where(m_entry, b_x, 0.0)
        if tap == 0:
            o_entry = (b_step % RING * D)[:, None] + o_col[None, :]
            m_kept = m_entry & (b_step >= length - RING)[:, None]
            tl.store(p_ring + slot * (RING * D) + o_entry, b_x, mask=m_kept)
        b_y += tl.load(p_weight + tap * D + o_col, mask=m_col, other=0.0)[None, :] * b_x
    tl.store(p_y + o_row[:, None] * D + o_col[None, :], b_y, mask=m_row[:, None] & m_col[None, :])


@triton.jit(do_not_specialize=["steps"])
def score_kernel(
    p_slots, p_parameters, p_canvas, p_bits, steps,
    T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr, FIRST_STEP: tl.constexpr, C: tl.constexpr,
    OUTPUTS: tl.constexpr, CATEGORICAL: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr,
    MIN_LOG_SCALE: tl.constexpr, BM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Write the bits of the known pixel whose first step is a row."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b = tl.program_id(0).to(tl.int64)
    slot, first_step = tl.load(p_slots + i_b).to(tl.int64), (i_b % steps).to(tl.int32)
    if slot < 0 or first_step % STEPS_PER_PIXEL != 0:
        return
    # Known values need neither random numbers nor a temperature.
    unused, temperature = tl.zeros([], tl.uint64), tl.full([], 1.0, tl.float32)
    nats = tl.zeros([], tl.float32)
    for subpixel in tl.static_range(STEPS_PER_PIXEL):
        step = first_step + subpixel
        p_row = p_parameters + (i_b + subpixel) * OUTPUTS
        p_values = p_canvas + slot * (T * STEPS_PER_PIXEL * C) + step * C
        if step >= FIRST_STEP:
            if CATEGORICAL:
                nats += sample_and_score_categorical(
                    p_row, p_values, unused, unused, unused, True, temperature, LEVELS
                )
            else:
                nats += sample_and_score_mixture(
                    p_row, p_values, unused, unused, unused, True, temperature, C, LEVELS, M,
                    MIN_LOG_SCALE, BM,
                )  # fmt: skip
    tl.store(p_bits + slot * T + first_step // STEPS_PER_PIXEL, nats / 0.6931471805599453)
