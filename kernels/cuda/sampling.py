"""Sampling kernel of the decode step: from the head's parameters to values, bits and positions.

Each program handles one row. ``model/heads.py`` defines the two heads and how to sample from them
by inverse CDF. The channels of a mixture's step are processed in order. Each value is either known
or sampled, and its bits at temperature 1 are added up.

Images with guidance, top-p or temperature 0 are sampled from the explicit distribution over the 256
values of each channel. Their bits are computed afterwards, as for known values. The twin of a
guided image (its unconditional pass) is the row after it; the image's program writes its values.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel
from scanline.kernels.cuda.distribution import (
    inverse_cdf,
    log_sum_exp,
    logistic_log_prob,
    mask_unlikely,
    mixture_log_probs,
    sample,
    tanh,
    tempered_log_probs,
)
from scanline.kernels.cuda.noise import uniform
from scanline.kernels.cuda.state import load_row


@triton.jit
def sample_filtered_categorical(
    p_parameters, p_value, seed, particle, draw, temperature, top_p, guidance, rows,
    LEVELS: tl.constexpr, MIN_LOG_PROB: tl.constexpr,
):  # fmt: skip
    """Sample a value with temperature, guidance by the second of two rows, and top-p.

    With guidance > 1, values that are unlikely with the label are excluded first
    (``model/heads.py``).
    """
    divisor = tl.where(temperature == 0, 1.0, temperature)
    b_log = tl.zeros([LEVELS], tl.float32)
    for row in range(rows):
        b_logit = tl.load(p_parameters + row * LEVELS + tl.arange(0, LEVELS))
        b_row = tempered_log_probs(b_logit, divisor, MIN_LOG_PROB)
        b_log += tl.where(row == 0, guidance, 1.0 - guidance) * b_row
        if (row == 0) & (rows > 1) & (guidance > 1.0) & (top_p < 1.0):
            b_log = mask_unlikely(b_log, b_row, top_p)
    value = sample(b_log, uniform(seed, particle, draw), temperature == 0, top_p, LEVELS)
    tl.store(p_value, value.to(tl.uint8))


@triton.jit
def sample_filtered_mixture(
    p_parameters, p_values, seed, particle, first_draw, temperature, top_p, guidance, rows,
    C: tl.constexpr, OUTPUTS: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr,
    MIN_LOG_SCALE: tl.constexpr, MIN_WARM_LOG_SCALE: tl.constexpr, MIN_LOG_PROB: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Sample C values as ``sample_filtered_categorical`` does, without sampling a component."""
    divisor = tl.where(temperature == 0, 1.0, temperature)
    first, second = tl.zeros([], tl.float32), tl.zeros([], tl.float32)
    for c in tl.static_range(C):
        b_log = tl.zeros([LEVELS], tl.float32)
        for row in range(rows):
            b_row = mixture_log_probs(
                p_parameters + row * OUTPUTS, first, second, divisor, c, C, LEVELS, M,
                MIN_LOG_SCALE, MIN_WARM_LOG_SCALE, MIN_LOG_PROB, BM,
            )  # fmt: skip
            b_log += tl.where(row == 0, guidance, 1.0 - guidance) * b_row
            if (row == 0) & (rows > 1) & (guidance > 1.0) & (top_p < 1.0):
                b_log = mask_unlikely(b_log, b_row, top_p)
        u = uniform(seed, particle, first_draw + 1 + c)
        value = sample(b_log, u, temperature == 0, top_p, LEVELS)
        tl.store(p_values + c, value.to(tl.uint8))
        scaled = tl.div_rn(value.to(tl.float32), 127.5) - 1.0
        if c == 0:
            first = scaled
        else:
            second = scaled


@triton.jit
def sample_and_score_categorical(
    p_parameters, p_value, seed, particle, draw, known, temperature, LEVELS: tl.constexpr
):
    """Sample a value, or keep a known one, from its logits; return its nats."""
    o_level = tl.arange(0, LEVELS)
    b_logit = tl.load(p_parameters + o_level)
    b_centred = b_logit - tl.max(b_logit, 0)
    if known:
        value = tl.load(p_value).to(tl.int32)
    else:
        u = uniform(seed, particle, draw)
        value = inverse_cdf(tl.exp(b_centred / temperature), o_level >= 0, u, LEVELS - 1)
    tl.store(p_value, value.to(tl.uint8))
    nats = tl.log(tl.sum(tl.exp(b_centred), 0))
    return nats - tl.sum(tl.where(o_level == value, b_centred, 0.0), 0)


@triton.jit
def sample_and_score_mixture(
    p_parameters, p_values, seed, particle, first_draw, known, temperature,
    C: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Sample C values, or keep known ones, from a mixture of M logistics; return their nats."""
    o_m = tl.arange(0, BM)
    m_m = o_m < M
    divisor = tl.where(temperature == 0, 1.0, temperature)
    b_weight = tl.load(p_parameters + o_m, mask=m_m, other=float("-inf"))
    b_centred = b_weight - tl.max(b_weight, 0)
    u_component = uniform(seed, particle, first_draw)
    component = inverse_cdf(tl.exp(b_centred / divisor), m_m, u_component, M - 1)
    # log P of each component and all values so far
    b_total = b_centred - tl.log(tl.sum(tl.exp(b_centred), 0))
    first, second = tl.zeros([], tl.float32), tl.zeros([], tl.float32)
    for c in tl.static_range(C):
        b_mean = tl.load(p_parameters + (1 + c) * M + o_m, mask=m_m, other=0.0)
        b_log_scale = tl.load(p_parameters + (1 + C + c) * M + o_m, mask=m_m, other=0.0)
        b_log_scale = tl.maximum(b_log_scale, MIN_LOG_SCALE)
        # Coefficients of channels (0, c), then (1, c).
        p_pair = p_parameters + (1 + 2 * C + c * (c - 1) // 2) * M
        if c > 0:
            b_mean += tanh(tl.load(p_pair + o_m, mask=m_m, other=0.0)) * first
        if c > 1:
            b_mean += tanh(tl.load(p_pair + M + o_m, mask=m_m, other=0.0)) * second
        if known:
            value = tl.load(p_values + c).to(tl.int32)
        else:
            u = uniform(seed, particle, first_draw + 1 + c)
            m_component = o_m == component
            mean = tl.sum(tl.where(m_component, b_mean, 0.0), 0)
            scale = tl.exp(tl.sum(tl.where(m_component, b_log_scale, 0.0), 0))
            sampled = mean + divisor * scale * (tl.log(u) - tl.log(1.0 - u))
            # Rounding half up gives exactly the bins of the likelihood.
            sampled = tl.floor((sampled + 1.0) * 127.5 + 0.5)
            sampled = tl.where(sampled > 0.0, sampled, 0.0)  # NaN becomes 0 too
            value = tl.minimum(sampled, LEVELS - 1.0).to(tl.int32)
        tl.store(p_values + c, value.to(tl.uint8))
        scaled = tl.div_rn(value.to(tl.float32), 127.5) - 1.0
        b_total += logistic_log_prob(scaled, b_mean, b_log_scale)
        if c == 0:
            first = scaled
        else:
            second = scaled
    return -log_sum_exp(b_total, 0)


@triton.jit(do_not_specialize=["subpixel"])
def sample_kernel(
    p_slots, p_positions, p_parameters, p_canvas, p_bits, p_known, p_seed, p_particle,
    p_temperature, p_top_p, p_guidance, p_twin, subpixel,
    T: tl.constexpr, STEPS_PER_PIXEL: tl.constexpr, FIRST_STEP: tl.constexpr,
    FIRST_VALUE: tl.constexpr, C: tl.constexpr, DRAWS: tl.constexpr, OUTPUTS: tl.constexpr,
    CATEGORICAL: tl.constexpr,
    LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    MIN_WARM_LOG_SCALE: tl.constexpr, MIN_LOG_PROB: tl.constexpr, BM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sample the values of one step, add up the pixel's bits, and advance after its last step."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b = tl.program_id(0).to(tl.int64)
    slot, step, active = load_row(p_slots, p_positions, i_b, subpixel, T, STEPS_PER_PIXEL)
    if not active:
        return
    before = tl.load(p_slots + i_b - 1, mask=i_b > 0, other=-1)
    if tl.load(p_twin + before, mask=before >= 0, other=-1) == slot:
        return  # a twin: the previous row's program handles it
    twin = tl.load(p_twin + slot).to(tl.int64)
    position = step // STEPS_PER_PIXEL
    o_values = step * C
    p_values = p_canvas + slot * (T * STEPS_PER_PIXEL * C) + o_values
    known = tl.load(p_known + slot * T + position) != 0
    nats = tl.zeros([], tl.float32)
    if step >= FIRST_STEP:
        p_row = p_parameters + i_b * OUTPUTS
        seed = tl.load(p_seed + slot).to(tl.uint64, bitcast=True)
        particle = tl.load(p_particle + slot).to(tl.uint64, bitcast=True)
        first_draw = (step * DRAWS).to(tl.uint64)
        temperature = tl.load(p_temperature + slot)
        top_p = tl.load(p_top_p + slot)
        # The same rule as in Head.sample (model/heads.py), which names the others.
        if (known == 0) & ((twin >= 0) | (top_p < 1.0) | (temperature == 0)):
            guidance = tl.load(p_guidance + slot)
            rows = 1 + (twin >= 0).to(tl.int32)
            if CATEGORICAL:
                sample_filtered_categorical(
                    p_row, p_values, seed, particle, first_draw, temperature, top_p, guidance,
                    rows, LEVELS, MIN_LOG_PROB,
                )  # fmt: skip
            else:
                sample_filtered_mixture(
                    p_row, p_values, seed, particle, first_draw, temperature, top_p, guidance,
                    rows, C, OUTPUTS, LEVELS, M, MIN_LOG_SCALE, MIN_WARM_LOG_SCALE, MIN_LOG_PROB,
                    BM,
                )  # fmt: skip
            tl.debug_barrier()  # one thread has written the values that all read
            known = known | True
        if CATEGORICAL:
            nats = sample_and_score_categorical(
                p_row, p_values, seed, particle, first_draw, known, temperature, LEVELS
            )
        else:
            nats = sample_and_score_mixture(
                p_row, p_values, seed, particle, first_draw, known, temperature,
                C, LEVELS, M, MIN_LOG_SCALE, BM,
            )  # fmt: skip
    elif not known:  # the network does not model this step
        tl.store(p_values, tl.full([], FIRST_VALUE, tl.uint8))
    p_bit = p_bits + slot * T + position
    bits = tl.load(p_bit, mask=subpixel > 0, other=0.0) + nats / 0.6931471805599453
    tl.store(p_bit, bits)
    if twin >= 0:
        tl.debug_barrier()
        for c in tl.static_range(C):
            value = tl.load(p_values + c)
            tl.store(p_canvas + twin * (T * STEPS_PER_PIXEL * C) + o_values + c, value)
        tl.store(p_bits + twin * T + position, bits)
    if subpixel == STEPS_PER_PIXEL - 1:
        tl.store(p_positions + slot, position + 1)
        tl.store(p_positions + twin, position + 1, mask=twin >= 0)
