"""Distributions over the 256 values of a channel, as Triton functions.

A program holds a whole distribution. ``model/heads.py`` defines the distributions.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse_cdf(b_weight, m_weight, u, LAST: tl.constexpr):
    """Return the first index whose cumulative weight exceeds u × total, at most ``LAST``."""
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
    """Return log P of the bin of width 2/255 around ``value``; outer bins extend to infinity.

    The bin's mass is computed without the difference of two sigmoids, which cancels far from the
    mean: with a = |value - mean| / scale and h half the bin's width over the scale, it is
    2 sinh(h) e^-a / ((1 + e^(h-a)) (1 + e^(-h-a))), and 2 sinh(h) / h has a series for small h.
    """
    b_inverse = tl.exp(-b_log_scale)
    b_centred = value - b_mean
    b_half = b_inverse * (1.0 / 255.0)
    b_away = tl.abs(b_inverse * b_centred)
    b_near, b_up, b_down = tl.exp(-b_away), tl.exp(b_half), tl.exp(-b_half)
    b_h2 = b_half * b_half
    b_series = 1.0 + b_h2 * (1.0 / 42.0) * (1.0 + b_h2 * (1.0 / 72.0))
    b_series = 1.0 + b_h2 * (1.0 / 6.0) * (1.0 + b_h2 * (1.0 / 20.0) * b_series)
    b_breadth = tl.where(b_half < 1.0, 2.0 * b_series, (b_up - b_down) / b_half)
    b_share = b_breadth / ((1.0 + b_near * b_up) * (1.0 + b_near * b_down))
    b_inside = tl.log(b_share) - b_away - b_log_scale - 5.54126355  # ln 255
    b_lowest = -softplus(-b_inverse * (b_centred + 1.0 / 255.0))
    b_highest = -softplus(b_inverse * (b_centred - 1.0 / 255.0))
    return tl.where(value < -0.999, b_lowest, tl.where(value > 0.999, b_highest, b_inside))


@triton.jit
def log_sum_exp(b_x, AXIS: tl.constexpr):
    b_top = tl.max(b_x, AXIS)
    b_shift = tl.expand_dims(b_top, AXIS) if len(b_x.shape) > 1 else b_top
    return b_top + tl.log(tl.sum(tl.exp(b_x - b_shift), AXIS))


@triton.jit
def tempered_log_probs(b_logit, temperature, MIN_LOG_PROB: tl.constexpr):
    """Return ln P at a temperature, clamped to ``MIN_LOG_PROB`` to avoid inf - inf.

    The maximum is subtracted before the division, which would overflow at low temperatures.
    """
    b_scaled = (b_logit - tl.max(b_logit, 0)) / temperature
    return tl.maximum(b_scaled - tl.log(tl.sum(tl.exp(b_scaled), 0)), MIN_LOG_PROB)


@triton.jit
def component_parameters(
    p_parameters, i_m, first, second, c: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
    MIN_LOG_SCALE: tl.constexpr,
):  # fmt: skip
    """Return mean and log-scale of logistic components ``i_m``, given the earlier channels."""
    mean = tl.load(p_parameters + (1 + c) * M + i_m)
    log_scale = tl.load(p_parameters + (1 + C + c) * M + i_m)
    p_pair = p_parameters + (1 + 2 * C + c * (c - 1) // 2) * M + i_m  # (0, c); then (1, c)
    if c > 0:
        mean += tanh(tl.load(p_pair)) * first
    if c > 1:
        mean += tanh(tl.load(p_pair + M)) * second
    return mean, tl.maximum(log_scale, MIN_LOG_SCALE)


@triton.jit
def mixture_log_probs(
    p_parameters, first, second, temperature, c: tl.constexpr, C: tl.constexpr,
    LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    MIN_WARM_LOG_SCALE: tl.constexpr, MIN_LOG_PROB: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Return ln P of a channel's values, given the earlier channels, at least ``MIN_LOG_PROB``.

    The temperature divides the components' logits and multiplies their scales.
    """
    # Exact division as in torch: a multiplication would make symmetric values differ.
    b_value = tl.div_rn(tl.arange(0, LEVELS).to(tl.float32), 127.5) - 1.0
    b_top = tl.full([LEVELS], float("-inf"), tl.float32)
    b_sum = tl.zeros([LEVELS], tl.float32)
    log_temperature = tl.log(temperature)
    o_m = tl.arange(0, BM)
    b_logit = tl.load(p_parameters + o_m, mask=o_m < M, other=float("-inf"))
    b_weight = tempered_log_probs(b_logit, temperature, MIN_LOG_PROB)
    for i_m in range(M):
        weight = tl.sum(tl.where(o_m == i_m, b_weight, 0.0), 0)
        # Bayes: the weight of the component given the earlier channels' values.
        for earlier in tl.static_range(c):
            mean, log_scale = component_parameters(
                p_parameters, i_m, first, second, earlier, C, M, MIN_LOG_SCALE
            )
            log_scale = tl.maximum(log_scale + log_temperature, MIN_WARM_LOG_SCALE)
            weight += logistic_log_prob(first if earlier == 0 else second, mean, log_scale)
        mean, log_scale = component_parameters(
            p_parameters, i_m, first, second, c, C, M, MIN_LOG_SCALE
        )
        log_scale = tl.maximum(log_scale + log_temperature, MIN_WARM_LOG_SCALE)
        b_log = weight + logistic_log_prob(b_value, mean, log_scale)
        b_new_top = tl.maximum(b_top, b_log)
        b_sum = b_sum * tl.exp(b_top - b_new_top) + tl.exp(b_log - b_new_top)
        b_top = b_new_top
    return tempered_log_probs(b_top + tl.log(b_sum), 1.0, MIN_LOG_PROB)


@triton.jit
def apply_top_p(b_weight, top_p):
    """Set all weights to 0 except the largest ones that hold ``top_p`` of the total.

    The largest weight must be 1. A value is kept if the weights above it sum to less than the
    share; among equal weights the lower value comes first. The smallest kept weight is found by
    bisection over bit patterns, because non-negative floats are ordered like their bits.
    """
    share = top_p * tl.sum(b_weight, 0)
    b_bits = b_weight.to(tl.int32, bitcast=True)
    low = tl.zeros([], tl.int32)
    high = low + 0x3F800000  # bits of 1.0, the largest weight
    for _ in range(30):
        middle = (low + high) // 2
        enough = tl.sum(tl.where(b_bits > middle, b_weight, 0.0), 0) < share
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    m_above, m_equal = b_bits > high, b_bits == high
    b_before = tl.sum(tl.where(m_above, b_weight, 0.0), 0) + b_weight * (
        tl.cumsum(m_equal.to(tl.int32), 0) - 1
    )
    return tl.where(m_above | (m_equal & (b_before < share)), b_weight, 0.0)


@triton.jit
def mask_unlikely(b_log, b_conditional, top_p):
    """Set ln P to -inf outside the conditional distribution's top 1 - (1 - top_p) / 4."""
    b_weight = tl.exp(b_conditional - tl.max(b_conditional, 0))
    b_weight = apply_top_p(b_weight, 1.0 - 0.25 * (1.0 - top_p))
    return tl.where(b_weight > 0.0, b_log, float("-inf"))


@triton.jit
def sample(b_log, u, greedy, top_p, LEVELS: tl.constexpr):
    """Sample from ln P with top-p filtering, or return the most likely value if ``greedy``."""
    b_weight = tl.exp(b_log - tl.max(b_log, 0))
    if top_p < 1.0:
        b_weight = apply_top_p(b_weight, top_p)
    value = inverse_cdf(b_weight, tl.arange(0, LEVELS) >= 0, u, LEVELS - 1)
    likeliest = tl.minimum(tl.maximum(tl.argmax(b_log, 0).to(tl.int32), 0), LEVELS - 1)
    return tl.where(greedy, likeliest, value)
