"""Matrix products of the decode step, fused with layer norm, bias, activation and residual.

A product is ``y = f(A Wᵀ + b)`` over rows ``[B, IN]``. The loop over ``IN`` has a fixed order and
step size and is never split, so a row gets the same bits alone or among thousands, even if the
tiles are wider. Row buffers are whole tiles. Rows without a slot are computed too and their results
ignored, because that costs less than masking them.

Layer norm needs neither a kernel of its own nor a program that holds a whole row. A kernel that
writes a tile of the residual stream also writes the tile's mean and sum of squared deviations. A
kernel that reads the row combines them (Chan et al. 1979) and normalises its operand as it loads.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.attention_kernels import feature_map
from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel

NORM_EPS = 1e-5  # of layer norm
BM, BK = 64, 64  # rows of every tile, and in bf16 the inner loop's step
BN_PROJECT = 128  # columns per program of ``project_kernel`` in bf16: wide, to read rows less often
BN_RESIDUAL = 64  # columns per program of ``residual_kernel``: few outputs with long sums


@triton.jit
def in_bounds(o, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Return ``o < SIZE``, as a constant true mask if ``SIZE`` is a multiple of ``TILE``.

    The tile must begin below ``SIZE``.
    """
    return o == o if SIZE % TILE == 0 else o < SIZE


@triton.jit
def statistics_size(D: tl.constexpr, BN: tl.constexpr):
    """Return the number of statistics of a row: two per tile."""
    return 2 * ((D + BN - 1) // BN)


@triton.jit
def write_statistics(p_statistics, o_row, b_y, i_tile, D: tl.constexpr, BN: tl.constexpr):
    """Store the mean and squared deviations of a tile ``[rows, BN]`` of the residual stream."""
    TILES: tl.constexpr = (D + BN - 1) // BN
    m_col = in_bounds(i_tile * BN + tl.arange(0, BN), D, BN)
    count = tl.minimum(D - i_tile * BN, BN).to(tl.float32)
    b_mean = tl.sum(tl.where(m_col[None, :], b_y, 0.0), 1) / count
    b_centred = tl.where(m_col[None, :], b_y - b_mean[:, None], 0.0)
    p_tile = p_statistics + (o_row * TILES + i_tile) * 2
    tl.store(p_tile, b_mean)
    tl.store(p_tile + 1, tl.sum(b_centred * b_centred, 1))


@triton.jit
def read_statistics(p_statistics, o_row, D: tl.constexpr, BN: tl.constexpr, EPS: tl.constexpr):
    """Return each row's mean and reciprocal standard deviation."""
    TILES: tl.constexpr = (D + BN - 1) // BN
    o_tile = tl.arange(0, triton.next_power_of_2(TILES))
    m_tile = (o_tile < TILES)[None, :]
    b_count = tl.minimum(tl.maximum(D - o_tile * BN, 0), BN).to(tl.float32)
    o_pair = (o_row[:, None] * TILES + o_tile[None, :]) * 2
    b_means = tl.load(p_statistics + o_pair, mask=m_tile, other=0.0)
    b_squares = tl.load(p_statistics + o_pair + 1, mask=m_tile, other=0.0)
    b_mean = tl.sum(b_means * b_count[None, :], 1) / D
    b_shift = b_means - b_mean[:, None]
    b_square = tl.sum(b_squares + b_shift * b_shift * b_count[None, :], 1)
    return b_mean, 1.0 / tl.sqrt(b_square / D + EPS)


@triton.jit
def normalise(
    b_x, p_statistics, p_norm_weight, p_norm_bias, o_row, o_col, m_col,
    D: tl.constexpr, BN: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Return the layer norm of a tile of rows from their statistics."""
    b_mean, b_rstd = read_statistics(p_statistics, o_row, D, BN, EPS)
    b_scale = tl.load(p_norm_weight + o_col, mask=m_col, other=0.0)
    b_shift = tl.load(p_norm_bias + o_col, mask=m_col, other=0.0)
    return (b_x - b_mean[:, None]) * b_rstd[:, None] * b_scale[None, :] + b_shift[None, :]


@triton.jit
def product(
    b_acc, p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight, o_row, o_col, m_col,
    IN: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, BK: tl.constexpr,
    BN_STATISTICS: tl.constexpr,
):  # fmt: skip
    """Add the tile ``[BM, BN]`` of norm(x) Wᵀ to ``b_acc``, in float32."""
    if NORM:
        b_mean, b_rstd = read_statistics(p_statistics, o_row, IN, BN_STATISTICS, EPS)
    for i_k in range(0, IN, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = in_bounds(o_k, IN, BK)
        b_x = tl.load(p_x + o_row[:, None] * IN + o_k[None, :], mask=m_k[None, :], other=0.0)
        if NORM:
            b_scale = tl.load(p_norm_weight + o_k, mask=m_k, other=0.0)
            b_shift = tl.load(p_norm_bias + o_k, mask=m_k, other=0.0)
            b_x = (b_x - b_mean[:, None]) * b_rstd[:, None] * b_scale[None, :] + b_shift[None, :]
        b_w = tl.load(
            p_weight + o_col[None, :] * IN + o_k[:, None],
            mask=m_col[None, :] & m_k[:, None],
            other=0.0,
        )
        b_acc = tl.dot(b_x.to(b_w.dtype), b_w, b_acc, input_precision="ieee")
    return b_acc


@triton.jit
def activate(b_y, ACTIVATION: tl.constexpr):
    """Apply the activation of the feed-forward network, if any."""
    if ACTIVATION == "relu":
        b_y = tl.maximum(b_y, 0.0)
    elif ACTIVATION == "gelu":
        b_y = 0.5 * b_y * (1.0 + tl.erf(b_y * 0.7071067811865476))
    return b_y


@triton.jit
def project_kernel(
    p_slots, p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight, p_bias, p_y,
    IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
    FEATURES: tl.constexpr, EPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BN_STATISTICS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute y = f(norm(x) Wᵀ + b), with φ on the first FEATURES columns."""
    if OVERLAP:
        wait_for_previous_kernel()
    first, o_row = tl.program_id(0).to(tl.int64) * BM, tl.arange(0, BM)
    o_col = tl.program_id(1) * BN + tl.arange(0, BN)
    if tl.max(tl.load(p_slots + first + o_row), 0) < 0:
        return
    p_x, p_y = p_x + first * IN, p_y + first * OUT
    if NORM:
        p_statistics += first * statistics_size(IN, BN_STATISTICS)
    m_col = in_bounds(o_col, OUT, BN)
    b_y = product(
        tl.zeros([BM, BN], tl.float32), p_x, p_statistics, p_norm_weight, p_norm_bias, p_weight,
        o_row, o_col, m_col, IN, NORM, EPS, BK, BN_STATISTICS,
    )  # fmt: skip
    b_y += tl.load(p_bias + o_col, mask=m_col, other=0.0)[None, :]
    if FEATURES > 0:
        b_y = tl.where((o_col < FEATURES)[None, :], feature_map(b_y), b_y)
    b_y = activate(b_y, ACTIVATION)
    tl.store(
        p_y + o_row[:, None] * OUT + o_col[None, :],
        b_y.to(p_y.dtype.element_ty),
        mask=m_col[None, :],
    )


@triton.jit
def residual_kernel(
    p_slots, p_a, p_weight, p_bias, p_x, p_x_statistics, p_norm_weight, p_norm_bias,
    p_y, p_y_statistics,
    IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute y = norm(x) + A Wᵀ + b and its statistics.

    x and y must be different buffers, because another program may still read the statistics of x.
    """
    if OVERLAP:
        wait_for_previous_kernel()
    i_n = tl.program_id(1)
    first, o_row = tl.program_id(0).to(tl.int64) * BM, tl.arange(0, BM)
    o_col = i_n * BN + tl.arange(0, BN)
    if tl.max(tl.load(p_slots + first + o_row), 0) < 0:
        return
    p_a, p_x, p_y = p_a + first * IN, p_x + first * OUT, p_y + first * OUT
    p_y_statistics += first * statistics_size(OUT, BN)
    if NORM:
        p_x_statistics += first * statistics_size(OUT, BN)
    m_col = in_bounds(o_col, OUT, BN)
    b_y = product(
        tl.zeros([BM, BN], tl.float32), p_a, p_a, p_a, p_a, p_weight, o_row, o_col, m_col,
        IN, False, EPS, BK, BN,
    )  # fmt: skip
    b_y += tl.load(p_bias + o_col, mask=m_col, other=0.0)[None, :]
    o_y = o_row[:, None] * OUT + o_col[None, :]
    b_x = tl.load(p_x + o_y, mask=m_col[None, :], other=0.0)
    if NORM:
        b_x = normalise(
            b_x, p_x_statistics, p_norm_weight, p_norm_bias, o_row, o_col, m_col, OUT, BN, EPS
        )
    b_y += b_x
    tl.store(p_y + o_y, b_y, mask=m_col[None, :])
    write_statistics(p_y_statistics, o_row, b_y, i_n, OUT, BN)


@triton.jit
def normalise_kernel(
    p_slots, p_x, p_x_statistics, p_norm_weight, p_norm_bias, p_y, p_y_statistics,
    D: tl.constexpr, EPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute y = norm(x) and its statistics, for two norms in a row (post-norm)."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_n = tl.program_id(1)
    o_row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    o_col = i_n * BN + tl.arange(0, BN)
    if tl.max(tl.load(p_slots + o_row), 0) < 0:
        return
    m_col = in_bounds(o_col, D, BN)
    o_y = o_row[:, None] * D + o_col[None, :]
    b_x = tl.load(p_x + o_y, mask=m_col[None, :], other=0.0)
    b_y = normalise(
        b_x, p_x_statistics, p_norm_weight, p_norm_bias, o_row, o_col, m_col, D, BN, EPS
    )
    tl.store(p_y + o_y, b_y, mask=m_col[None, :])
    write_statistics(p_y_statistics, o_row, b_y, i_n, D, BN)
