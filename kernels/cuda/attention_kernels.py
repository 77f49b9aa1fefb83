"""Triton kernels of causal linear attention (eq. 9-15), one chunk of positions at a time.

A program processes the chunks of one head, forward or in reverse, and keeps the sums over the
chunks it has processed in registers. The output and each gradient have the same two terms,

    out_j = x_j · state + Σ_i (x_j · y_i) w_i        i ≤ j, or i ≥ j in reverse

with (x, y, w) = (φq, φk, v) for eq. 9, (∂o, v, φk) for eq. 13, (v, ∂o, φq) for eq. 14 and
(φk, φq, ∂o) for eq. 15, where the state is the sum of y wᵀ. The denominator is treated as an
additional column of ones in v, whose gradient is -∂o · o divided by the denominator.

Tensors have the names of ``attention.py``. ``o`` and ``grad_o`` are contiguous ``[B, T, H, V]``,
the final state ``[B, H, ·]``, and ``grad`` holds the gradients of q, k and v side by side,
``[B, T, H (2 K + V)]``. Offsets within a chunk are 32-bit, offsets of chunks 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def feature_map(b):
    """Return φ(b) = elu(b) + 1 (eq. 7), or NaN for NaN, which ``tl.maximum`` would drop."""
    return tl.where(b > 0, b, 0.0) + tl.exp(tl.where(b > 0, 0.0, b))


@triton.jit
def load_rows(p, stride, o_t, o_x, m, FEATURE_MAP: tl.constexpr):
    """Load ``[BT, BX]`` as float32 and apply φ if ``FEATURE_MAP``; masked elements are 0."""
    b = tl.load(p + o_t[:, None] * stride + o_x[None, :], mask=m, other=0.0).to(tl.float32)
    if FEATURE_MAP:
        b = tl.where(m, feature_map(b), 0.0)
    return b


@triton.jit
def feature_map_derivative(p, stride, o_t, o_x, m):
    """Return the derivative of φ at the elements ``[BT, BX]``."""
    b = tl.load(p + o_t[:, None] * stride + o_x[None, :], mask=m, other=0.0).to(tl.float32)
    return tl.exp(tl.where(b > 0, 0.0, b))


@triton.jit
def to_operand(b, PRECISION: tl.constexpr):
    """Convert an operand of a product to bfloat16 if ``PRECISION`` says so."""
    if PRECISION == "bf16":
        b = b.to(tl.bfloat16)
    return b


@triton.jit
def dot(b_x, b_y, b_sum, PRECISION: tl.constexpr):
    """Add the product of two converted operands to a float32 sum."""
    if PRECISION == "bf16":
        b_sum = tl.dot(b_x, b_y, acc=b_sum)
    else:
        b_sum = tl.dot(b_x, b_y, acc=b_sum, input_precision=PRECISION)
    return b_sum


@triton.jit(do_not_specialize=["T", "H"])
def forward_kernel(
    q, k, v, o, denominator, final_kv, final_z,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr,
    FEATURE_MAP: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``BW`` columns of eq. 9 and the final state of one head."""
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_v = tl.program_id(1) * BW + tl.arange(0, BW)
    m_k, m_v = o_k < K, o_v < V
    b_s, b_z = tl.zeros([BK, BW], tl.float32), tl.zeros([BK], tl.float32)
    p_q = q + i_b * q_stride_b + i_h * q_stride_h
    p_k = k + i_b * k_stride_b + i_h * k_stride_h
    p_v = v + i_b * v_stride_b + i_h * v_stride_h
    p_d = denominator + i_b * T * H + i_h
    p_o = o + (i_b * T * H + i_h) * V
    for i in range(0, tl.cdiv(T, BT)):
        m_t = i * BT + o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_q = load_rows(p_q, q_stride_t, o_t, o_k, m_tk, FEATURE_MAP)
        b_k = load_rows(p_k, k_stride_t, o_t, o_k, m_tk, FEATURE_MAP)
        b_v = load_rows(p_v, v_stride_t, o_t, o_v, m_tv, False)
        b_d = tl.sum(b_q * b_z[None, :], 1) + EPS
        b_z += tl.sum(b_k, 0)
        b_q, b_k = to_operand(b_q, PRECISION), to_operand(b_k, PRECISION)
        b_v = to_operand(b_v, PRECISION)
        b_a = dot(b_q, tl.trans(b_k), tl.zeros([BT, BT], tl.float32), PRECISION)
        b_a = tl.where(o_t[:, None] >= o_t[None, :], b_a, 0.0)
        b_d += tl.sum(b_a, 1)
        b_o = dot(b_q, to_operand(b_s, PRECISION), tl.zeros([BT, BW], tl.float32), PRECISION)
        b_o = dot(to_operand(b_a, PRECISION), b_v, b_o, PRECISION) / b_d[:, None]
        o_o = o_t[:, None] * (H * V) + o_v[None, :]
        tl.store(p_o + o_o, b_o.to(o.dtype.element_ty), mask=m_tv)
        if tl.program_id(1) == 0:
            tl.store(p_d + o_t * H, b_d, mask=m_t)
        b_s = dot(tl.trans(b_k), b_v, b_s, PRECISION)
        p_q, p_k = p_q + BT * q_stride_t, p_k + BT * k_stride_t
        p_v, p_o, p_d = p_v + BT * v_stride_t, p_o + BT * (H * V), p_d + BT * H
    if final_kv is not None:
        o_s = o_k[:, None] * V + o_v[None, :]
        tl.store(final_kv + i_bh * (K * V) + o_s, b_s, mask=m_k[:, None] & m_v[None, :])
        if tl.program_id(1) == 0:
            tl.store(final_z + i_bh * K + o_k, b_z, mask=m_k)


@triton.jit
def grad_q(
    p_q, p_k, p_v, p_o, p_d, p_go, p_grad, q_stride, k_stride, v_stride, H, T, i_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BW: tl.constexpr,
    FEATURE_MAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute eq. 13 with the gradient through the denominator, forward."""
    o_t, o_v, o_k = tl.arange(0, BT), tl.arange(0, BV), i_k * BW + tl.arange(0, BW)
    m_k, m_v = o_k < K, o_v < V
    b_s, b_z = tl.zeros([BV, BW], tl.float32), tl.zeros([BW], tl.float32)
    for i in range(0, tl.cdiv(T, BT)):
        m_t = i * BT + o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_go = load_rows(p_go, H * V, o_t, o_v, m_tv, False)
        b_o = load_rows(p_o, H * V, o_t, o_v, m_tv, False)
        b_v = load_rows(p_v, v_stride, o_t, o_v, m_tv, False)
        b_k = load_rows(p_k, k_stride, o_t, o_k, m_tk, FEATURE_MAP)
        b_d = tl.load(p_d + o_t * H, mask=m_t, other=1.0)
        b_gd = tl.sum(b_go * b_o, 1)
        # Triton 3.6 cannot compile heads of 20 features if the sum starts with the product itself.
        b_g = tl.zeros([BT, BW], tl.float32) - b_gd[:, None] * b_z[None, :]
        b_z += tl.sum(b_k, 0)
        b_go, b_v = to_operand(b_go, PRECISION), to_operand(b_v, PRECISION)
        b_k = to_operand(b_k, PRECISION)
        b_a = dot(b_go, tl.trans(b_v), tl.zeros([BT, BT], tl.float32), PRECISION)
        b_a = tl.where(o_t[:, None] >= o_t[None, :], b_a - b_gd[:, None], 0.0)
        b_g = dot(b_go, to_operand(b_s, PRECISION), b_g, PRECISION)
        b_g = dot(to_operand(b_a, PRECISION), b_k, b_g, PRECISION) / b_d[:, None]
        if FEATURE_MAP:
            b_g *= feature_map_derivative(p_q, q_stride, o_t, o_k, m_tk)
        o_g = o_t[:, None] * (H * (2 * K + V)) + o_k[None, :]
        tl.store(p_grad + o_g, b_g.to(p_grad.dtype.element_ty), mask=m_tk)
        b_s = dot(tl.trans(b_v), b_k, b_s, PRECISION)
        p_q, p_k, p_v = p_q + BT * q_stride, p_k + BT * k_stride, p_v + BT * v_stride
        p_o, p_go, p_d = p_o + BT * (H * V), p_go + BT * (H * V), p_d + BT * H
        p_grad += BT * (H * (2 * K + V))


@triton.jit
def grad_k(
    p_q, p_k, p_v, p_o, p_d, p_go, p_grad, q_stride, k_stride, v_stride, H, T, i_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BW: tl.constexpr,
    FEATURE_MAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute eq. 14 with the gradient through the denominator, in reverse."""
    o_t, o_v, o_k = tl.arange(0, BT), tl.arange(0, BV), i_k * BW + tl.arange(0, BW)
    m_k, m_v = o_k < K, o_v < V
    b_s, b_z = tl.zeros([BV, BW], tl.float32), tl.zeros([BW], tl.float32)
    NT = tl.cdiv(T, BT)
    last = tl.cast((NT - 1) * BT, tl.int64)
    p_q, p_k, p_v = p_q + last * q_stride, p_k + last * k_stride, p_v + last * v_stride
    p_o, p_go, p_d = p_o + last * (H * V), p_go + last * (H * V), p_d + last * H
    p_grad += last * (H * (2 * K + V))
    for i in range(0, NT):
        m_t = (NT - 1 - i) * BT + o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_go = load_rows(p_go, H * V, o_t, o_v, m_tv, False)
        b_o = load_rows(p_o, H * V, o_t, o_v, m_tv, False)
        b_v = load_rows(p_v, v_stride, o_t, o_v, m_tv, False)
        b_q = load_rows(p_q, q_stride, o_t, o_k, m_tk, FEATURE_MAP)
        b_d = tl.load(p_d + o_t * H, mask=m_t, other=1.0)
        b_go = b_go / b_d[:, None]
        b_gd = -tl.sum(b_go * b_o, 1)
        b_g = tl.zeros([BT, BW], tl.float32) + b_z[None, :]
        b_z += tl.sum(b_q * b_gd[:, None], 0)
        b_go, b_v = to_operand(b_go, PRECISION), to_operand(b_v, PRECISION)
        b_q = to_operand(b_q, PRECISION)
        b_a = dot(b_v, tl.trans(b_go), tl.zeros([BT, BT], tl.float32), PRECISION)
        b_a = tl.where(o_t[:, None] <= o_t[None, :], b_a + b_gd[None, :], 0.0)
        b_g = dot(b_v, to_operand(b_s, PRECISION), b_g, PRECISION)
        b_g = dot(to_operand(b_a, PRECISION), b_q, b_g, PRECISION)
        if FEATURE_MAP:
            b_g *= feature_map_derivative(p_k, k_stride, o_t, o_k, m_tk)
        o_g = o_t[:, None] * (H * (2 * K + V)) + o_k[None, :]
        tl.store(p_grad + o_g, b_g.to(p_grad.dtype.element_ty), mask=m_tk)
        b_s = dot(tl.trans(b_go), b_q, b_s, PRECISION)
        p_q, p_k, p_v = p_q - BT * q_stride, p_k - BT * k_stride, p_v - BT * v_stride
        p_o, p_go, p_d = p_o - BT * (H * V), p_go - BT * (H * V), p_d - BT * H
        p_grad -= BT * (H * (2 * K + V))


@triton.jit
def grad_v(
    p_q, p_k, p_d, p_go, p_grad, q_stride, k_stride, H, T, i_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr,
    FEATURE_MAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute eq. 15, in reverse."""
    o_t, o_k, o_v = tl.arange(0, BT), tl.arange(0, BK), i_v * BW + tl.arange(0, BW)
    m_k, m_v = o_k < K, o_v < V
    b_s = tl.zeros([BK, BW], tl.float32)
    NT = tl.cdiv(T, BT)
    last = tl.cast((NT - 1) * BT, tl.int64)
    p_q, p_k, p_d = p_q + last * q_stride, p_k + last * k_stride, p_d + last * H
    p_go, p_grad = p_go + last * (H * V), p_grad + last * (H * (2 * K + V))
    for i in range(0, NT):
        m_t = (NT - 1 - i) * BT + o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_q = load_rows(p_q, q_stride, o_t, o_k, m_tk, FEATURE_MAP)
        b_k = load_rows(p_k, k_stride, o_t, o_k, m_tk, FEATURE_MAP)
        b_go = load_rows(p_go, H * V, o_t, o_v, m_tv, False)
        b_d = tl.load(p_d + o_t * H, mask=m_t, other=1.0)
        b_q, b_k = to_operand(b_q, PRECISION), to_operand(b_k, PRECISION)
        b_go = to_operand(b_go / b_d[:, None], PRECISION)
        b_a = dot(b_k, tl.trans(b_q), tl.zeros([BT, BT], tl.float32), PRECISION)
        b_a = tl.where(o_t[:, None] <= o_t[None, :], b_a, 0.0)
        b_g = dot(b_k, to_operand(b_s, PRECISION), tl.zeros([BT, BW], tl.float32), PRECISION)
        b_g = dot(to_operand(b_a, PRECISION), b_go, b_g, PRECISION)
        o_g = o_t[:, None] * (H * (2 * K + V)) + o_v[None, :]
        tl.store(p_grad + o_g, b_g.to(p_grad.dtype.element_ty), mask=m_tv)
        b_s = dot(tl.trans(b_q), b_go, b_s, PRECISION)
        p_q, p_k, p_d = p_q - BT * q_stride, p_k - BT * k_stride, p_d - BT * H
        p_go, p_grad = p_go - BT * (H * V), p_grad - BT * (H * (2 * K + V))


@triton.jit(do_not_specialize=["T", "H"])
def backward_kernel(
    q, k, v, o, denominator, grad_o, grad,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    BW: tl.constexpr, FEATURE_MAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``BW`` columns of one gradient of one head; the gradients run in parallel."""
    TILES_K: tl.constexpr = (K + BW - 1) // BW
    PROGRAMS: tl.constexpr = 2 * TILES_K + (V + BW - 1) // BW
    head, program = tl.program_id(0) // PROGRAMS, tl.program_id(0) % PROGRAMS
    i_b, i_h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    p_q = q + i_b * q_stride_b + i_h * q_stride_h
    p_k = k + i_b * k_stride_b + i_h * k_stride_h
    p_v = v + i_b * v_stride_b + i_h * v_stride_h
    first = i_b * T * H + i_h
    p_o, p_go, p_d = o + first * V, grad_o + first * V, denominator + first
    p_grad = grad + i_b * T * H * (2 * K + V)
    if program < TILES_K:
        grad_q(
            p_q, p_k, p_v, p_o, p_d, p_go, p_grad + i_h * K,
            q_stride_t, k_stride_t, v_stride_t, H, T, program,
            K, V, BT, BV, BW, FEATURE_MAP, PRECISION,
        )  # fmt: skip
    elif program < 2 * TILES_K:
        grad_k(
            p_q, p_k, p_v, p_o, p_d, p_go, p_grad + (H + i_h) * K,
            q_stride_t, k_stride_t, v_stride_t, H, T, program - TILES_K,
            K, V, BT, BV, BW, FEATURE_MAP, PRECISION,
        )  # fmt: skip
    else:
        grad_v(
            p_q, p_k, p_d, p_go, p_grad + 2 * H * K + i_h * V,
            q_stride_t, k_stride_t, H, T, program - 2 * TILES_K,
            K, V, BT, BK, BW, FEATURE_MAP, PRECISION,
        )  # fmt: skip
