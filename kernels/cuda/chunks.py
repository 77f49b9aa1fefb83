"""Device code of causal linear attention in chunks (eq. 9-15); ``triton_attention`` launches it.

``states_kernel`` walks the chunks of one head and writes the state before each (after each, in
reverse). Given those, every chunk is on its own, and an output is always the same three terms,

    out_j = x_j · state + Σ_i (x_j · y_i) w_i        i ≤ j, or i ≥ j in reverse

with (x, y, w) = (φq, φk, v) for eq. 9, (∂o, v, φk) for eq. 13, (v, ∂o, φq) for eq. 14 and
(φk, φq, ∂o) for eq. 15. The denominator is a column of ones beside v, whose gradient is
``grad_denominator``.

Names of tensors are those of ``triton_attention``. Tensors without strides are contiguous
``[B, T, H, ·]``, states ``[B, H, chunks, ·]`` or ``[B, H, ·]``. Places within a chunk are 32-bit,
those of chunks 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(p, stride, o_t, o_x, m, FEATURES: tl.constexpr):
    """Load ``[BT, BX]`` as float32, φ applied where asked; 0 where masked, NaN kept."""
    b = tl.load(p + o_t[:, None] * stride + o_x[None, :], mask=m, other=0.0).to(tl.float32)
    if FEATURES:
        b = tl.where(b > 0, b, 0.0) + tl.exp(tl.where(b > 0, 0.0, b))
        b = tl.where(m, b, 0.0)
    return b


@triton.jit
def derivative(p, stride, o_t, o_x, m):
    b = tl.load(p + o_t[:, None] * stride + o_x[None, :], mask=m, other=0.0).to(tl.float32)
    return tl.exp(tl.where(b > 0, 0.0, b))


@triton.jit
def against_state(
    p_x, stride_x, p_y, stride_y, p_u, stride_u, p_s, stride_sx, stride_sw, m_t, o_w, m_w,
    X: tl.constexpr, BT: tl.constexpr, BX: tl.constexpr, BW: tl.constexpr,
    X_FEATURES: tl.constexpr, Y_FEATURES: tl.constexpr, U: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Walk along X and give ``x yᵀ [BT, BT]``, ``x s [BT, BW]`` and ``Σ x u [BT]`` (where U)."""
    b_a, b_o = tl.zeros([BT, BT], tl.float32), tl.zeros([BT, BW], tl.float32)
    b_d = tl.zeros([BT], tl.float32)
    o_t = tl.arange(0, BT)
    for i_x in range(0, X, BX):
        o_x = i_x + tl.arange(0, BX)
        m_x = o_x < X
        m_tx = m_t[:, None] & m_x[None, :]
        b_x = load_rows(p_x, stride_x, o_t, o_x, m_tx, X_FEATURES)
        b_y = load_rows(p_y, stride_y, o_t, o_x, m_tx, Y_FEATURES)
        o_s = o_x[:, None] * stride_sx + o_w[None, :] * stride_sw
        b_s = tl.load(p_s + o_s, mask=m_x[:, None] & m_w[None, :], other=0.0)
        if U:
            b_d += tl.sum(b_x * load_rows(p_u, stride_u, o_t, o_x, m_tx, False), 1)
        b_a = tl.dot(b_x, tl.trans(b_y), acc=b_a, input_precision=PRECISION)
        b_o = tl.dot(b_x, b_s, acc=b_o, input_precision=PRECISION)
    return b_a, b_o, b_d


@triton.jit(do_not_specialize=["T", "H"])
def states_kernel(
    k, v, denominator, grad_denominator, initial_kv, initial_z, kv, z, final_kv, final_z,
    k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ELU: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_k, i_v = tl.program_id(1) // tl.cdiv(V, BV), tl.program_id(1) % tl.cdiv(V, BV)
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    o_t, o_k, o_v = tl.arange(0, BT), i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    NT = tl.cdiv(T, BT)
    o_s = o_k[:, None] * V + o_v[None, :]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.load(initial_kv + i_bh * (K * V) + o_s, mask=m_s, other=0.0)
    b_z = tl.load(initial_z + i_bh * K + o_k, mask=m_k, other=0.0)
    p_k = k + i_b * k_stride_b + i_h * k_stride_h
    p_v = v + i_b * v_stride_b + i_h * v_stride_h
    for i in range(0, NT):
        i_t = i
        if REVERSE:
            i_t = NT - 1 - i
        p_s, p_z = kv + (i_bh * NT + i_t) * (K * V), z + (i_bh * NT + i_t) * K
        tl.store(p_s + o_s, b_s, mask=m_s)
        if i_v == 0:
            tl.store(p_z + o_k, b_z, mask=m_k)
        t = (i_t * BT).to(tl.int64)
        m_t = t + o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_k = load_rows(p_k + t * k_stride_t, k_stride_t, o_t, o_k, m_tk, ELU)
        b_v = load_rows(p_v + t * v_stride_t, v_stride_t, o_t, o_v, m_tv, False)
        if REVERSE:
            p_d = (i_b * T + t) * H + i_h + o_t * H
            b_v = b_v / tl.load(denominator + p_d, mask=m_t, other=1.0)[:, None]
            b_z += tl.sum(b_k * tl.load(grad_denominator + p_d, mask=m_t, other=0.0)[:, None], 0)
        else:
            b_z += tl.sum(b_k, 0)
        b_s = tl.dot(tl.trans(b_k), b_v, acc=b_s, input_precision=PRECISION)
    tl.store(final_kv + i_bh * (K * V) + o_s, b_s, mask=m_s)
    if i_v == 0:
        tl.store(final_z + i_bh * K + o_k, b_z, mask=m_k)


@triton.jit(do_not_specialize=["T", "H"])
def forward_kernel(
    q, k, v, kv, z, o, denominator,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, T, H, eps,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NT = tl.cdiv(T, BT)
    i_state, i_bh = tl.program_id(0).to(tl.int64), tl.program_id(0) // NT
    i_b, i_h = (i_bh // H).to(tl.int64), (i_bh % H).to(tl.int64)
    t = ((tl.program_id(0) % NT) * BT).to(tl.int64)
    o_t, o_v = tl.arange(0, BT), tl.program_id(1) * BV + tl.arange(0, BV)
    m_t, m_v = t + o_t < T, o_v < V
    p_q = q + i_b * q_stride_b + i_h * q_stride_h + t * q_stride_t
    p_k = k + i_b * k_stride_b + i_h * k_stride_h + t * k_stride_t
    p_v = v + i_b * v_stride_b + i_h * v_stride_h + t * v_stride_t
    b_a, b_o, b_d = against_state(
        p_q, q_stride_t, p_k, k_stride_t, z + i_state * K, 0, kv + i_state * (K * V), V, 1,
        m_t, o_v, m_v, K, BT, BK, BV, ELU, ELU, True, PRECISION,
    )  # fmt: skip
    m_tv = m_t[:, None] & m_v[None, :]
    b_v = load_rows(p_v, v_stride_t, o_t, o_v, m_tv, False)
    b_a = tl.where(o_t[:, None] >= o_t[None, :], b_a, 0.0)
    b_o = tl.dot(b_a, b_v, acc=b_o, input_precision=PRECISION)
    b_d += tl.sum(b_a, 1) + eps
    p_d = (i_b * T + t) * H + i_h
    o_o = p_d * V + o_t[:, None] * (H * V) + o_v[None, :]
    tl.store(o + o_o, (b_o / b_d[:, None]).to(o.dtype.element_ty), mask=m_tv)
    if tl.program_id(1) == 0:
        tl.store(denominator + p_d + o_t * H, b_d, mask=m_t)


@triton.jit(do_not_specialize=["T", "H"])
def backward_q_kernel(
    q, k, v, kv, z, o, denominator, grad_o, grad_q, grad_denominator,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NT = tl.cdiv(T, BT)
    i_state, i_bh = tl.program_id(0).to(tl.int64), tl.program_id(0) // NT
    i_b, i_h = (i_bh // H).to(tl.int64), (i_bh % H).to(tl.int64)
    t = ((tl.program_id(0) % NT) * BT).to(tl.int64)
    o_t, o_k = tl.arange(0, BT), tl.program_id(1) * BK + tl.arange(0, BK)
    m_t, m_k = t + o_t < T, o_k < K
    p_q = q + i_b * q_stride_b + i_h * q_stride_h + t * q_stride_t
    p_k = k + i_b * k_stride_b + i_h * k_stride_h + t * k_stride_t
    p_v = v + i_b * v_stride_b + i_h * v_stride_h + t * v_stride_t
    first = (i_b * T + t) * H + i_h
    b_a, b_gq, b_gd = against_state(
        grad_o + first * V, H * V, p_v, v_stride_t, o + first * V, H * V,
        kv + i_state * (K * V), 1, V, m_t, o_k, m_k,
        V, BT, BV, BK, False, False, True, PRECISION,
    )  # fmt: skip
    m_tk = m_t[:, None] & m_k[None, :]
    b_d = tl.load(denominator + first + o_t * H, mask=m_t, other=1.0)
    b_z = tl.load(z + i_state * K + o_k, mask=m_k, other=0.0)
    b_k = load_rows(p_k, k_stride_t, o_t, o_k, m_tk, ELU)
    b_a = tl.where(o_t[:, None] >= o_t[None, :], b_a - b_gd[:, None], 0.0)
    b_gq = tl.dot(b_a, b_k, acc=b_gq, input_precision=PRECISION) - b_gd[:, None] * b_z[None, :]
    b_gq = b_gq / b_d[:, None]
    if ELU:
        b_gq *= derivative(p_q, q_stride_t, o_t, o_k, m_tk)
    o_gq = first * K + o_t[:, None] * (H * K) + o_k[None, :]
    tl.store(grad_q + o_gq, b_gq.to(grad_q.dtype.element_ty), mask=m_tk)
    if tl.program_id(1) == 0:
        tl.store(grad_denominator + first + o_t * H, -b_gd / b_d, mask=m_t)


@triton.jit(do_not_specialize=["T", "H"])
def backward_k_kernel(
    q, k, v, kv, z, denominator, grad_o, grad_denominator, grad_k,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NT = tl.cdiv(T, BT)
    i_state, i_bh = tl.program_id(0).to(tl.int64), tl.program_id(0) // NT
    i_b, i_h = (i_bh // H).to(tl.int64), (i_bh % H).to(tl.int64)
    t = ((tl.program_id(0) % NT) * BT).to(tl.int64)
    o_t, o_k = tl.arange(0, BT), tl.program_id(1) * BK + tl.arange(0, BK)
    m_t, m_k = t + o_t < T, o_k < K
    p_q = q + i_b * q_stride_b + i_h * q_stride_h + t * q_stride_t
    p_k = k + i_b * k_stride_b + i_h * k_stride_h + t * k_stride_t
    p_v = v + i_b * v_stride_b + i_h * v_stride_h + t * v_stride_t
    first = (i_b * T + t) * H + i_h
    p_go = grad_o + first * V
    b_a, b_gk, _ = against_state(
        p_v, v_stride_t, p_go, H * V, p_go, H * V, kv + i_state * (K * V), 1, V, m_t, o_k, m_k,
        V, BT, BV, BK, False, False, False, PRECISION,
    )  # fmt: skip
    m_tk = m_t[:, None] & m_k[None, :]
    b_d = tl.load(denominator + first + o_t * H, mask=m_t, other=1.0)
    b_gd = tl.load(grad_denominator + first + o_t * H, mask=m_t, other=0.0)
    b_z = tl.load(z + i_state * K + o_k, mask=m_k, other=0.0)
    b_q = load_rows(p_q, q_stride_t, o_t, o_k, m_tk, ELU)
    b_a = b_a / b_d[None, :] + b_gd[None, :]
    b_a = tl.where(o_t[:, None] <= o_t[None, :], b_a, 0.0)
    b_gk = tl.dot(b_a, b_q, acc=b_gk, input_precision=PRECISION) + b_z[None, :]
    if ELU:
        b_gk *= derivative(p_k, k_stride_t, o_t, o_k, m_tk)
    o_gk = first * K + o_t[:, None] * (H * K) + o_k[None, :]
    tl.store(grad_k + o_gk, b_gk.to(grad_k.dtype.element_ty), mask=m_tk)


@triton.jit(do_not_specialize=["T", "H"])
def backward_v_kernel(
    q, k, kv, denominator, grad_o, grad_v,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NT = tl.cdiv(T, BT)
    i_state, i_bh = tl.program_id(0).to(tl.int64), tl.program_id(0) // NT
    i_b, i_h = (i_bh // H).to(tl.int64), (i_bh % H).to(tl.int64)
    t = ((tl.program_id(0) % NT) * BT).to(tl.int64)
    o_t, o_v = tl.arange(0, BT), tl.program_id(1) * BV + tl.arange(0, BV)
    m_t, m_v = t + o_t < T, o_v < V
    p_q = q + i_b * q_stride_b + i_h * q_stride_h + t * q_stride_t
    p_k = k + i_b * k_stride_b + i_h * k_stride_h + t * k_stride_t
    first = (i_b * T + t) * H + i_h
    b_a, b_gv, _ = against_state(
        p_k, k_stride_t, p_q, q_stride_t, p_q, q_stride_t, kv + i_state * (K * V), V, 1,
        m_t, o_v, m_v, K, BT, BK, BV, ELU, ELU, False, PRECISION,
    )  # fmt: skip
    m_tv = m_t[:, None] & m_v[None, :]
    b_d = tl.load(denominator + first + o_t * H, mask=m_t, other=1.0)
    b_g = load_rows(grad_o + first * V, H * V, o_t, o_v, m_tv, False)
    b_a = tl.where(o_t[:, None] <= o_t[None, :], b_a / b_d[None, :], 0.0)
    b_gv = tl.dot(b_a, b_g, acc=b_gv, input_precision=PRECISION)
    o_gv = first * V + o_t[:, None] * (H * V) + o_v[None, :]
    tl.store(grad_v + o_gv, b_gv.to(grad_v.dtype.element_ty), mask=m_tv)
