"""Device code of what stands between two products; ``residual.py`` launches it.

    total = x + added + bias        seen = convolution(norm(total))

A norm is kept as two numbers a position, its mean and the reciprocal of its deviation, from which
all that reads it makes it again: the convolution its five places of it, the way back too. Rows of
features lie one behind another; positions are numbered within an image, rows over all images.
"""

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.short_conv import distance, inside


@triton.jit
def sum_kernel(
    x, added, bias, total, mean, scale, rows, eps,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Add, and give the sum (where something is added) and its norm's mean and scale."""
    row, o_d = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT), tl.arange(0, BD)
    m = (row < rows)[:, None] & (o_d < D)[None, :]
    at = row[:, None] * D + o_d[None, :]
    b = tl.load(x + at, mask=m, other=0.0)
    if added is not None:
        b += tl.load(added + at, mask=m, other=0.0).to(tl.float32)
        if bias is not None:
            b += tl.load(bias + o_d, mask=o_d < D, other=0.0)[None, :]
        tl.store(total + at, b, mask=m)
    middle = tl.sum(b, 1) / D
    centred = tl.where(m, b - middle[:, None], 0.0)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(scale + row, 1 / tl.sqrt_rn(tl.sum(centred * centred, 1) / D + eps), mask=row < rows)


@triton.jit
def read_tap(
    total, mean, scale, b_g, b_b, conv, first, t, m_t, o_d, m_d, columns, stride,
    TAP: tl.constexpr, D: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Give what a tap adds at positions ``t`` of the image whose first row is ``first``."""
    there = t - distance(TAP, columns, stride)
    m_t = m_t & (there >= 0) & inside(TAP, t, columns, stride)
    m = m_t[:, None] & m_d[None, :]
    row = first + there
    b = tl.load(total + row[:, None] * D + o_d[None, :], mask=m, other=0.0)
    middle, factor = tl.load(mean + row, mask=m_t), tl.load(scale + row, mask=m_t)
    b = (b - middle[:, None]) * factor[:, None] * b_g[None, :] + b_b[None, :]
    if CONVOLVED:
        b *= tl.load(conv + TAP * D + o_d, mask=m_d, other=0.0)[None, :]
    return tl.where(m, b, 0.0)


@triton.jit(do_not_specialize=["T", "tiles", "columns", "stride"])
def seen_kernel(
    total, mean, scale, norm_weight, norm_bias, conv, seen, T, tiles, columns, stride,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Normalise the sum and convolve it, a tile of an image's positions a program."""
    first = (tl.program_id(0) // tiles).to(tl.int64) * T
    t, o_d = (tl.program_id(0) % tiles) * BT + tl.arange(0, BT), tl.arange(0, BD)
    m_t, m_d = t < T, o_d < D
    b_g = tl.load(norm_weight + o_d, mask=m_d, other=0.0)
    b_b = tl.load(norm_bias + o_d, mask=m_d, other=0.0)
    b = tl.zeros([BT, BD], tl.float32)
    for TAP in tl.static_range(5 if CONVOLVED else 1):
        b += read_tap(
            total, mean, scale, b_g, b_b, conv, first, t, m_t, o_d, m_d, columns, stride,
            TAP, D, CONVOLVED,
        )  # fmt: skip
    at = (first + t)[:, None] * D + o_d[None, :]
    tl.store(seen + at, b.to(seen.dtype.element_ty), mask=m_t[:, None] & m_d[None, :])


@triton.jit
def pull_tap(
    b_g, b_s, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
    TAP: tl.constexpr, D: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Add what a tap made of positions ``t`` to their gradient and to that of the tap's weight.

    The tap's output lies that much later; ``b_n`` is what it read.
    """
    there = t + distance(TAP, columns, stride)
    m_t = m_t & (there < T) & inside(TAP, there, columns, stride)
    at = (first + there)[:, None] * D + o_d[None, :]
    g = tl.load(grad_seen + at, mask=m_t[:, None] & m_d[None, :], other=0.0).to(tl.float32)
    b_s += g * b_n
    if CONVOLVED:
        g *= tl.load(conv + TAP * D + o_d, mask=m_d, other=0.0)[None, :]
    return b_g + g, b_s


@triton.jit(do_not_specialize=["T", "tiles", "all_tiles", "each", "columns", "stride"])
def backward_kernel(
    total, mean, scale, norm_weight, norm_bias, conv, grad_seen, grad_total, grad_x, grad_added,
    of_programs, T, tiles, all_tiles, each, columns, stride,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, CONVOLVED: tl.constexpr,
):  # fmt: skip
    """Give the gradient of the sum, and this program's share of the weights' gradients.

    A program takes ``each`` tiles in a row, and sums over their positions once it is through.
    ``of_programs: [programs, 8, D]`` are those of the bias, the norm's weight and bias, and the
    five taps; gradients of the sum go to ``grad_x`` and, in its own dtype, to ``grad_added``.
    """
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_g = tl.load(norm_weight + o_d, mask=m_d, other=0.0)
    b_b = tl.load(norm_bias + o_d, mask=m_d, other=0.0)
    none = tl.zeros([BT, BD], tl.float32)
    s_bias, s_g, s_b, s_0, s_1, s_2, s_3, s_4 = none, none, none, none, none, none, none, none
    for n in range(0, each):
        tile = tl.program_id(0) * each + n
        first = (tile // tiles).to(tl.int64) * T
        t = (tile % tiles) * BT + tl.arange(0, BT)
        m_t = (t < T) & (tile < all_tiles)
        m = m_t[:, None] & m_d[None, :]
        row = first + t
        at = row[:, None] * D + o_d[None, :]
        middle = tl.load(mean + row, mask=m_t, other=0.0)
        factor = tl.load(scale + row, mask=m_t, other=0.0)
        b_x = tl.load(total + at, mask=m, other=0.0)
        b_x = tl.where(m, (b_x - middle[:, None]) * factor[:, None], 0.0)
        b_n = tl.where(m, b_x * b_g[None, :] + b_b[None, :], 0.0)
        g, s_0 = pull_tap(
            none, s_0, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
            0, D, CONVOLVED,
        )  # fmt: skip
        if CONVOLVED:
            g, s_1 = pull_tap(
                g, s_1, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
                1, D, True,
            )  # fmt: skip
            g, s_2 = pull_tap(
                g, s_2, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
                2, D, True,
            )  # fmt: skip
            g, s_3 = pull_tap(
                g, s_3, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
                3, D, True,
            )  # fmt: skip
            g, s_4 = pull_tap(
                g, s_4, b_n, grad_seen, conv, first, t, m_t, o_d, m_d, T, columns, stride,
                4, D, True,
            )  # fmt: skip
        s_g += g * b_x
        s_b += g
        g *= b_g[None, :]
        along, of_mean = tl.sum(g * b_x, 1) / D, tl.sum(g, 1) / D
        g = (g - of_mean[:, None] - b_x * along[:, None]) * factor[:, None]
        if grad_total is not None:
            g += tl.load(grad_total + at, mask=m, other=0.0)
        g = tl.where(m, g, 0.0)
        s_bias += g
        tl.store(grad_x + at, g, mask=m)
        if grad_added is not None:
            tl.store(grad_added + at, g.to(grad_added.dtype.element_ty), mask=m)
    of_mine = of_programs + tl.program_id(0).to(tl.int64) * (8 * D) + o_d
    tl.store(of_mine, tl.sum(s_bias, 0), mask=m_d)
    tl.store(of_mine + D, tl.sum(s_g, 0), mask=m_d)
    tl.store(of_mine + 2 * D, tl.sum(s_b, 0), mask=m_d)
    if CONVOLVED:
        tl.store(of_mine + 3 * D, tl.sum(s_0, 0), mask=m_d)
        tl.store(of_mine + 4 * D, tl.sum(s_1, 0), mask=m_d)
        tl.store(of_mine + 5 * D, tl.sum(s_2, 0), mask=m_d)
        tl.store(of_mine + 6 * D, tl.sum(s_3, 0), mask=m_d)
        tl.store(of_mine + 7 * D, tl.sum(s_4, 0), mask=m_d)


@triton.jit(do_not_specialize=["N", "each"])
def column_sums_kernel(
    x, sums, N, each, COLUMNS: tl.constexpr, BT: tl.constexpr, BO: tl.constexpr
):  # fmt: skip
    """Sum rows of ``x: [N, COLUMNS]``, ``each`` tiles a program: ``sums: [programs, COLUMNS]``."""
    o_o = tl.program_id(1) * BO + tl.arange(0, BO)
    total = tl.zeros([BT, BO], tl.float32)
    for n in range(0, each):
        row = (tl.program_id(0) * each + n).to(tl.int64) * BT + tl.arange(0, BT)
        m = (row < N)[:, None] & (o_o < COLUMNS)[None, :]
        total += tl.load(x + row[:, None] * COLUMNS + o_o[None, :], mask=m, other=0.0).to(
            tl.float32
        )
    at = sums + tl.program_id(0).to(tl.int64) * COLUMNS + o_o
    tl.store(at, tl.sum(total, 0), mask=o_o < COLUMNS)
