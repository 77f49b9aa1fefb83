"""Triton kernels of a residual connection, a layer norm and a short convolution.

    total = x + added + bias        out = convolution(norm(total))

The norm is stored as two numbers per position, its mean and the reciprocal of its standard
deviation. The convolution and the backward pass recompute the normalised values from them. Rows of
features are contiguous; positions ``t`` count within an image, rows over all images.
"""

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.short_conv import tap_is_inside, tap_offset


@triton.jit
def add_kernel(
    x, added, bias, total, mean, rstd, rows, eps,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Store the sum (if something is added) and its mean and reciprocal standard deviation."""
    row, o_d = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT), tl.arange(0, BD)
    m = (row < rows)[:, None] & (o_d < D)[None, :]
    at = row[:, None] * D + o_d[None, :]
    b = tl.load(x + at, mask=m, other=0.0)
    if added is not None:
        b += tl.load(added + at, mask=m, other=0.0).to(tl.float32)
        if bias is not None:
            b += tl.load(bias + o_d, mask=o_d < D, other=0.0)[None, :]
        tl.store(total + at, b, mask=m)
    b_mean = tl.sum(b, 1) / D
    centred = tl.where(m, b - b_mean[:, None], 0.0)
    tl.store(mean + row, b_mean, mask=row < rows)
    tl.store(rstd + row, 1 / tl.sqrt_rn(tl.sum(centred * centred, 1) / D + eps), mask=row < rows)


@triton.jit
def read_tap(
    total, mean, rstd, b_g, b_b, conv, first, t, m_t, o_d, m_d, columns,
    TAP: tl.constexpr, D: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Return what a tap adds at positions ``t`` of the image whose first row is ``first``."""
    source = t - tap_offset(TAP, columns)
    m_t = m_t & (source >= 0) & tap_is_inside(TAP, t, columns)
    m = m_t[:, None] & m_d[None, :]
    row = first + source
    b = tl.load(total + row[:, None] * D + o_d[None, :], mask=m, other=0.0)
    b_mean, b_rstd = tl.load(mean + row, mask=m_t), tl.load(rstd + row, mask=m_t)
    b = (b - b_mean[:, None]) * b_rstd[:, None] * b_g[None, :] + b_b[None, :]
    if CONVOLVED:
        b *= tl.load(conv + TAP * D + o_d, mask=m_d, other=0.0)[None, :]
    return tl.where(m, b, 0.0)


@triton.jit(do_not_specialize=["T", "tiles", "columns"])
def norm_conv_kernel(
    total, mean, rstd, norm_weight, norm_bias, conv, out, T, tiles, columns,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Normalise and convolve one tile of positions of an image."""
    first = (tl.program_id(0) // tiles).to(tl.int64) * T
    t, o_d = (tl.program_id(0) % tiles) * BT + tl.arange(0, BT), tl.arange(0, BD)
    m_t, m_d = t < T, o_d < D
    b_g = tl.load(norm_weight + o_d, mask=m_d, other=0.0)
    b_b = tl.load(norm_bias + o_d, mask=m_d, other=0.0)
    b = tl.zeros([BT, BD], tl.float32)
    for TAP in tl.static_range(5 if CONVOLVED else 1):
        b += read_tap(
            total, mean, rstd, b_g, b_b, conv, first, t, m_t, o_d, m_d, columns,
            TAP, D, CONVOLVED,
        )  # fmt: skip
    at = (first + t)[:, None] * D + o_d[None, :]
    tl.store(out + at, b.to(out.dtype.element_ty), mask=m_t[:, None] & m_d[None, :])


@triton.jit
def add_tap_gradients(
    b_g, b_s, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
    TAP: tl.constexpr, D: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Add a tap's part of the gradients of positions ``t`` and of its own weight.

    The tap's output is ``tap_offset`` steps later; ``b_n`` is the normalised input.
    """
    target = t + tap_offset(TAP, columns)
    m_t = m_t & (target < T) & tap_is_inside(TAP, target, columns)
    at = (first + target)[:, None] * D + o_d[None, :]
    g = tl.load(grad_out + at, mask=m_t[:, None] & m_d[None, :], other=0.0).to(tl.float32)
    b_s += g * b_n
    if CONVOLVED:
        g *= tl.load(conv + TAP * D + o_d, mask=m_d, other=0.0)[None, :]
    return b_g + g, b_s


@triton.jit(do_not_specialize=["T", "tiles", "all_tiles", "tiles_per_program", "columns"])
def residual_backward_kernel(
    total, mean, rstd, norm_weight, norm_bias, conv, grad_out, grad_total, grad_x, grad_added,
    partial_grads, T, tiles, all_tiles, tiles_per_program, columns,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the sum and this program's part of the weights' gradients.

    A program processes ``tiles_per_program`` consecutive tiles and then sums over their positions.
    ``partial_grads: [programs, 8, D]`` holds the gradients of the bias, the norm's weight and bias,
    and the five taps. The gradient of the sum goes to ``grad_x`` and, in the dtype of ``added``, to
    ``grad_added``.
    """
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_g = tl.load(norm_weight + o_d, mask=m_d, other=0.0)
    b_b = tl.load(norm_bias + o_d, mask=m_d, other=0.0)
    none = tl.zeros([BT, BD], tl.float32)
    s_bias, s_g, s_b, s_0, s_1, s_2, s_3, s_4 = none, none, none, none, none, none, none, none
    for n in range(0, tiles_per_program):
        tile = tl.program_id(0) * tiles_per_program + n
        first = (tile // tiles).to(tl.int64) * T
        t = (tile % tiles) * BT + tl.arange(0, BT)
        m_t = (t < T) & (tile < all_tiles)
        m = m_t[:, None] & m_d[None, :]
        row = first + t
        at = row[:, None] * D + o_d[None, :]
        b_mean = tl.load(mean + row, mask=m_t, other=0.0)
        b_rstd = tl.load(rstd + row, mask=m_t, other=0.0)
        b_x = tl.load(total + at, mask=m, other=0.0)
        b_x = tl.where(m, (b_x - b_mean[:, None]) * b_rstd[:, None], 0.0)
        b_n = tl.where(m, b_x * b_g[None, :] + b_b[None, :], 0.0)
        g, s_0 = add_tap_gradients(
            none, s_0, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
            0, D, CONVOLVED,
        )  # fmt: skip
        if CONVOLVED:
            g, s_1 = add_tap_gradients(
                g, s_1, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
                1, D, True,
            )  # fmt: skip
            g, s_2 = add_tap_gradients(
                g, s_2, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
                2, D, True,
            )  # fmt: skip
            g, s_3 = add_tap_gradients(
                g, s_3, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
                3, D, True,
            )  # fmt: skip
            g, s_4 = add_tap_gradients(
                g, s_4, b_n, grad_out, conv, first, t, m_t, o_d, m_d, T, columns,
                4, D, True,
            )  # fmt: skip
        s_g += g * b_x
        s_b += g
        g *= b_g[None, :]
        grad_rstd, grad_mean = tl.sum(g * b_x, 1) / D, tl.sum(g, 1) / D
        g = (g - grad_mean[:, None] - b_x * grad_rstd[:, None]) * b_rstd[:, None]
        if grad_total is not None:
            g += tl.load(grad_total + at, mask=m, other=0.0)
        g = tl.where(m, g, 0.0)
        s_bias += g
        tl.store(grad_x + at, g, mask=m)
        if grad_added is not None:
            tl.store(grad_added + at, g.to(grad_added.dtype.element_ty), mask=m)
    p_grads = partial_grads + tl.program_id(0).to(tl.int64) * (8 * D) + o_d
    tl.store(p_grads, tl.sum(s_bias, 0), mask=m_d)
    tl.store(p_grads + D, tl.sum(s_g, 0), mask=m_d)
    tl.store(p_grads + 2 * D, tl.sum(s_b, 0), mask=m_d)
    if CONVOLVED:
        tl.store(p_grads + 3 * D, tl.sum(s_0, 0), mask=m_d)
        tl.store(p_grads + 4 * D, tl.sum(s_1, 0), mask=m_d)
        tl.store(p_grads + 5 * D, tl.sum(s_2, 0), mask=m_d)
        tl.store(p_grads + 6 * D, tl.sum(s_3, 0), mask=m_d)
        tl.store(p_grads + 7 * D, tl.sum(s_4, 0), mask=m_d)


@triton.jit(do_not_specialize=["N", "tiles_per_program"])
def column_sums_kernel(
    x, sums, N, tiles_per_program,
    COLUMNS: tl.constexpr, BT: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Sum ``tiles_per_program`` tiles of rows of ``x: [N, COLUMNS]``; one row of ``sums`` each."""
    o_o = tl.program_id(1) * BO + tl.arange(0, BO)
    total = tl.zeros([BT, BO], tl.float32)
    for n in range(0, tiles_per_program):
        row = (tl.program_id(0) * tiles_per_program + n).to(tl.int64) * BT + tl.arange(0, BT)
        m = (row < N)[:, None] & (o_o < COLUMNS)[None, :]
        total += tl.load(x + row[:, None] * COLUMNS + o_o[None, :], mask=m, other=0.0).to(
            tl.float32
        )
    at = sums + tl.program_id(0).to(tl.int64) * COLUMNS + o_o
    tl.store(at, tl.sum(total, 0), mask=o_o < COLUMNS)
