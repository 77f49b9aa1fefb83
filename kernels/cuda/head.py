"""The end of a decode step: from the head's parameters to values, bits and positions.

One program a row. The two heads, and sampling from them by inverse CDF, are defined with the
model; here the channels of a step are decided in turn, each value either the caller's (known), the
likeliest (temperature 0) or drawn, and its cost at temperature 1 is counted on the way.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.state import row_of


@triton.jit
def inverse_cdf(b_weight, m_weight, u, LAST: tl.constexpr):
    """Give the first index whose cumulated weight exceeds u × total, whatever the numbers are."""
    b_sum = tl.cumsum(tl.where(m_weight, b_weight, 0.0), 0)
    b_below = (b_sum <= u * tl.max(b_sum, 0)) & m_weight
    return tl.minimum(tl.sum(b_below.to(tl.int32), 0), LAST)


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    b_small = tl.exp(-2.0 * tl.abs(x))
    b_tanh = (1.0 - b_small) / (1.0 + b_small)
    return tl.where(x < 0, -b_tanh, b_tanh)


@triton.jit
def logistic_log_prob(value, b_mean, b_log_scale):
    """Give log P of the bin around ``value``, 2/255 wide; the outermost reach to infinity.

    The bin's mass is written without the difference of two sigmoids, which cancels far from the
    mean: with a = |value - mean| / scale and h half the bin's width over the scale, it is
    2 sinh(h) e^-a / ((1 + e^(h-a)) (1 + e^(-h-a))), and 2 sinh(h) has a series for small h.
    """
    b_inverse = tl.exp(-b_log_scale)
    b_centred = value - b_mean
    b_half = b_inverse * (1.0 / 255.0)
    b_away = tl.abs(b_inverse * b_centred)
    b_near, b_up, b_down = tl.exp(-b_away), tl.exp(b_half), tl.exp(-b_half)
    b_h2 = b_half * b_half
    b_series = 1.0 + b_h2 * (1.0 / 42.0) * (1.0 + b_h2 * (1.0 / 72.0))
    b_series = 1.0 + b_h2 * (1.0 / 6.0) * (1.0 + b_h2 * (1.0 / 20.0) * b_series)
    b_width = tl.where(b_half < 1.0, 2.0 * b_half * b_series, b_up - b_down)
    b_inside = b_width * b_near / ((1.0 + b_near * b_up) * (1.0 + b_near * b_down))
    # Where a bin holds almost nothing, the density at its middle; log(127.5) makes it a mass.
    b_density = -b_away - b_log_scale - 2.0 * tl.log(1.0 + b_near) - 4.84811636
    b_middle = tl.where(b_inside > 1e-5, tl.log(tl.maximum(b_inside, 1e-12)), b_density)
    b_lowest = -softplus(-b_inverse * (b_centred + 1.0 / 255.0))
    b_highest = -softplus(b_inverse * (b_centred - 1.0 / 255.0))
    return tl.where(value < -0.999, b_lowest, tl.where(value > 0.999, b_highest, b_middle))


@triton.jit
def log_sum_exp(b_x, AXIS: tl.constexpr):
    b_top = tl.max(b_x, AXIS)
    b_shift = tl.expand_dims(b_top, AXIS) if len(b_x.shape) > 1 else b_top
    return b_top + tl.log(tl.sum(tl.exp(b_x - b_shift), AXIS))


@triton.jit
def decide_categorical(
    p_parameters, p_tables, p_values, p_noise, known, temperature,
    C: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Decide C values, each from its own logits; gives their nats."""
    o_level = tl.arange(0, LEVELS)
    heat = tl.where(temperature == 0, 1.0, temperature)
    nats = tl.zeros([], tl.float32)
    first, second = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    for c in tl.static_range(C):
        b_logit = tl.load(p_parameters + c * LEVELS + o_level)
        pair = c * (c - 1) // 2  # of channels (0, c); then (1, c)
        if c > 0:
            b_logit += tl.load(p_tables + (pair * LEVELS + first) * LEVELS + o_level)
        if c > 1:
            b_logit += tl.load(p_tables + ((pair + 1) * LEVELS + second) * LEVELS + o_level)
        b_away = b_logit - tl.max(b_logit, 0)
        if known:
            value = tl.load(p_values + c).to(tl.int32)
        elif temperature == 0:
            value = tl.minimum(tl.maximum(tl.argmax(b_logit, 0).to(tl.int32), 0), LEVELS - 1)
        else:
            u = tl.load(p_noise + c)
            value = inverse_cdf(tl.exp(b_away / heat), o_level >= 0, u, LEVELS - 1)
        tl.store(p_values + c, value.to(tl.uint8))
        nats += tl.log(tl.sum(tl.exp(b_away), 0))
        nats -= tl.sum(tl.where(o_level == value, b_away, 0.0), 0)
        if c == 0:
            first = value
        else:
            second = value
    return nats


@triton.jit
def most_likely(b_total, b_mean, b_log_scale, LEVELS: tl.constexpr, BL: tl.constexpr):
    """Give the likeliest value under components of these log weights."""
    value = tl.zeros([], tl.int32)
    best = tl.full([], float("-inf"), tl.float32)
    for i_level in range(0, LEVELS, BL):
        o_level = i_level + tl.arange(0, BL)
        b_scaled = o_level.to(tl.float32) / 127.5 - 1.0
        b_each = logistic_log_prob(b_scaled[:, None], b_mean[None, :], b_log_scale[None, :])
        b_log = log_sum_exp(b_total[None, :] + b_each, 1)
        top = tl.max(b_log, 0)
        at = i_level + tl.argmax(b_log, 0).to(tl.int32)
        value = tl.where(top > best, at, value)
        best = tl.maximum(best, top)
    return value


@triton.jit
def decide_mixture(
    p_parameters, p_values, p_noise, known, temperature,
    C: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    BM: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Decide C values from one mixture of M logistics a channel; gives their nats."""
    o_m = tl.arange(0, BM)
    m_m = o_m < M
    heat = tl.where(temperature == 0, 1.0, temperature)
    b_weight = tl.load(p_parameters + o_m, mask=m_m, other=float("-inf"))
    b_away = b_weight - tl.max(b_weight, 0)
    component = inverse_cdf(tl.exp(b_away / heat), m_m, tl.load(p_noise), M - 1)
    # log P of each component and of all values so far
    b_total = b_away - tl.log(tl.sum(tl.exp(b_away), 0))
    first, second = tl.zeros([], tl.float32), tl.zeros([], tl.float32)
    for c in tl.static_range(C):
        b_mean = tl.load(p_parameters + (1 + c) * M + o_m, mask=m_m, other=0.0)
        b_log_scale = tl.load(p_parameters + (1 + C + c) * M + o_m, mask=m_m, other=0.0)
        b_log_scale = tl.maximum(b_log_scale, MIN_LOG_SCALE)
        p_pair = (
            p_parameters + (1 + 2 * C + c * (c - 1) // 2) * M
        )  # of channels (0, c); then (1, c)
        if c > 0:
            b_mean += tanh(tl.load(p_pair + o_m, mask=m_m, other=0.0)) * first
        if c > 1:
            b_mean += tanh(tl.load(p_pair + M + o_m, mask=m_m, other=0.0)) * second
        if known:
            value = tl.load(p_values + c).to(tl.int32)
        elif temperature == 0:
            value = most_likely(b_total, b_mean, b_log_scale, LEVELS, BL)
        else:
            u = tl.load(p_noise + 1 + c)
            m_mine = o_m == component
            mean = tl.sum(tl.where(m_mine, b_mean, 0.0), 0)
            scale = tl.exp(tl.sum(tl.where(m_mine, b_log_scale, 0.0), 0))
            drawn = mean + heat * scale * (tl.log(u) - tl.log(1.0 - u))
            # Rounding half up gives exactly the bins of the likelihood, edges included.
            drawn = tl.floor((drawn + 1.0) * 127.5 + 0.5)
            drawn = tl.where(drawn > 0.0, drawn, 0.0)  # what is no number becomes 0 too
            value = tl.minimum(drawn, LEVELS - 1.0).to(tl.int32)
        tl.store(p_values + c, value.to(tl.uint8))
        scaled = value.to(tl.float32) / 127.5 - 1.0
        b_total += logistic_log_prob(scaled, b_mean, b_log_scale)
        if c == 0:
            first = scaled
        else:
            second = scaled
    return -log_sum_exp(b_total, 0)


@triton.jit(do_not_specialize=["part"])
def sample_kernel(
    p_slots, p_positions, p_parameters, p_tables, p_canvas, p_bits, p_known, p_noise,
    p_temperature, part,
    T: tl.constexpr, PARTS: tl.constexpr, FIRST: tl.constexpr, FIRST_VALUE: tl.constexpr,
    C: tl.constexpr, DRAWS: tl.constexpr, OUTPUTS: tl.constexpr, CATEGORICAL: tl.constexpr,
    LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    BM: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Decide what one step decides, add up the pixel's bits, and move on after its last step."""
    i_b = tl.program_id(0).to(tl.int64)
    slot, step, live = row_of(p_slots, p_positions, i_b, part, T, PARTS)
    if not live:
        return
    position = step // PARTS
    p_values = p_canvas + (slot * (T * PARTS) + step) * C
    known = tl.load(p_known + slot * T + position) != 0
    nats = tl.zeros([], tl.float32)
    if step >= FIRST:
        p_mine = p_parameters + i_b * OUTPUTS
        p_uniform = p_noise + (slot * (T * PARTS) + step) * DRAWS
        temperature = tl.load(p_temperature + slot)
        if CATEGORICAL:
            nats = decide_categorical(
                p_mine, p_tables, p_values, p_uniform, known, temperature, C, LEVELS
            )
        else:
            nats = decide_mixture(
                p_mine, p_values, p_uniform, known, temperature,
                C, LEVELS, M, MIN_LOG_SCALE, BM, BL,
            )  # fmt: skip
    elif not known:  # the network does not model this value
        tl.store(p_values, tl.full([], FIRST_VALUE, tl.uint8))
    p_bit = p_bits + slot * T + position
    tl.store(p_bit, tl.load(p_bit, mask=part > 0, other=0.0) + nats / 0.6931471805599453)
    if part == PARTS - 1:
        tl.store(p_positions + slot, position + 1)
