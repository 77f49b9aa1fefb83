"""The end of a decode step: from the head's parameters to values, bits and positions.

One program a row. The two heads, and sampling from them by inverse CDF, are defined with the
model; here the channels of a step are decided in turn, each value either the caller's (known) or
drawn, and its cost at temperature 1 is counted on the way.

Images that are guided, cut to their likeliest values or at temperature 0 are drawn from the 256
values of each channel instead, and their cost is counted afterwards as if they had been known. A
guided image's twin is the row after it, and goes where its image's program leads it.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from scanline.kernels.cuda.dependent_launch import wait_for_previous_kernel
from scanline.kernels.cuda.distribution import (
    cooled,
    draw,
    inverse_cdf,
    log_sum_exp,
    logistic_log_prob,
    mixture_log_probs,
    only_likely,
    tanh,
)
from scanline.kernels.cuda.noise import uniform
from scanline.kernels.cuda.state import row_of


@triton.jit
def logits(p_parameters, p_tables, first, second, c: tl.constexpr, LEVELS: tl.constexpr):
    """Give a channel's logits, given the earlier channels' values."""
    o_level = tl.arange(0, LEVELS)
    b_logit = tl.load(p_parameters + c * LEVELS + o_level)
    pair = c * (c - 1) // 2  # of channels (0, c); then (1, c)
    if c > 0:
        b_logit += tl.load(p_tables + (pair * LEVELS + first) * LEVELS + o_level)
    if c > 1:
        b_logit += tl.load(p_tables + ((pair + 1) * LEVELS + second) * LEVELS + o_level)
    return b_logit


@triton.jit
def shape_categorical(
    p_parameters, p_tables, p_values, seed, particle, first_draw, temperature, top_p, guidance,
    rows,
    C: tl.constexpr, OUTPUTS: tl.constexpr, LEVELS: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Draw C values, tempered, guided by the second of two rows, and cut to the likeliest.

    Beyond guidance 1 they are cut to the likeliest with the label first: model/heads.py.
    """
    heat = tl.where(temperature == 0, 1.0, temperature)
    first, second = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    for c in tl.static_range(C):
        b_log = tl.zeros([LEVELS], tl.float32)
        for row in range(rows):
            b_logit = logits(p_parameters + row * OUTPUTS, p_tables, first, second, c, LEVELS)
            b_mine = cooled(b_logit, heat, LEAST)
            b_log += tl.where(row == 0, guidance, 1.0 - guidance) * b_mine
            if (row == 0) & (rows > 1) & (guidance > 1.0) & (top_p < 1.0):
                b_log = only_likely(b_log, b_mine, top_p)
        u = uniform(seed, particle, first_draw + c)
        value = draw(b_log, u, temperature == 0, top_p, LEVELS)
        tl.store(p_values + c, value.to(tl.uint8))
        if c == 0:
            first = value
        else:
            second = value


@triton.jit
def shape_mixture(
    p_parameters, p_values, seed, particle, first_draw, temperature, top_p, guidance, rows,
    C: tl.constexpr, OUTPUTS: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr,
    MIN_LOG_SCALE: tl.constexpr, MIN_WARM_LOG_SCALE: tl.constexpr, LEAST: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Draw C values as ``shape_categorical`` does; no component is drawn first."""
    heat = tl.where(temperature == 0, 1.0, temperature)
    first, second = tl.zeros([], tl.float32), tl.zeros([], tl.float32)
    for c in tl.static_range(C):
        b_log = tl.zeros([LEVELS], tl.float32)
        for row in range(rows):
            b_mine = mixture_log_probs(
                p_parameters + row * OUTPUTS, first, second, heat, c, C, LEVELS, M, MIN_LOG_SCALE,
                MIN_WARM_LOG_SCALE, LEAST, BM,
            )  # fmt: skip
            b_log += tl.where(row == 0, guidance, 1.0 - guidance) * b_mine
            if (row == 0) & (rows > 1) & (guidance > 1.0) & (top_p < 1.0):
                b_log = only_likely(b_log, b_mine, top_p)
        u = uniform(seed, particle, first_draw + 1 + c)
        value = draw(b_log, u, temperature == 0, top_p, LEVELS)
        tl.store(p_values + c, value.to(tl.uint8))
        scaled = tl.div_rn(value.to(tl.float32), 127.5) - 1.0
        if c == 0:
            first = scaled
        else:
            second = scaled


@triton.jit
def decide_categorical(
    p_parameters, p_tables, p_values, seed, particle, first_draw, known, temperature,
    C: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Decide C values, each from its own logits; gives their nats."""
    o_level = tl.arange(0, LEVELS)
    nats = tl.zeros([], tl.float32)
    first, second = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    for c in tl.static_range(C):
        b_logit = logits(p_parameters, p_tables, first, second, c, LEVELS)
        b_away = b_logit - tl.max(b_logit, 0)
        if known:
            value = tl.load(p_values + c).to(tl.int32)
        else:
            u = uniform(seed, particle, first_draw + c)
            value = inverse_cdf(tl.exp(b_away / temperature), o_level >= 0, u, LEVELS - 1)
        tl.store(p_values + c, value.to(tl.uint8))
        nats += tl.log(tl.sum(tl.exp(b_away), 0))
        nats -= tl.sum(tl.where(o_level == value, b_away, 0.0), 0)
        if c == 0:
            first = value
        else:
            second = value
    return nats


@triton.jit
def decide_mixture(
    p_parameters, p_values, seed, particle, first_draw, known, temperature,
    C: tl.constexpr, LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Decide C values from one mixture of M logistics a channel; gives their nats."""
    o_m = tl.arange(0, BM)
    m_m = o_m < M
    heat = tl.where(temperature == 0, 1.0, temperature)
    b_weight = tl.load(p_parameters + o_m, mask=m_m, other=float("-inf"))
    b_away = b_weight - tl.max(b_weight, 0)
    u_component = uniform(seed, particle, first_draw)
    component = inverse_cdf(tl.exp(b_away / heat), m_m, u_component, M - 1)
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
        else:
            u = uniform(seed, particle, first_draw + 1 + c)
            m_mine = o_m == component
            mean = tl.sum(tl.where(m_mine, b_mean, 0.0), 0)
            scale = tl.exp(tl.sum(tl.where(m_mine, b_log_scale, 0.0), 0))
            drawn = mean + heat * scale * (tl.log(u) - tl.log(1.0 - u))
            # Rounding half up gives exactly the bins of the likelihood, edges included.
            drawn = tl.floor((drawn + 1.0) * 127.5 + 0.5)
            drawn = tl.where(drawn > 0.0, drawn, 0.0)  # what is no number becomes 0 too
            value = tl.minimum(drawn, LEVELS - 1.0).to(tl.int32)
        tl.store(p_values + c, value.to(tl.uint8))
        scaled = tl.div_rn(value.to(tl.float32), 127.5) - 1.0
        b_total += logistic_log_prob(scaled, b_mean, b_log_scale)
        if c == 0:
            first = scaled
        else:
            second = scaled
    return -log_sum_exp(b_total, 0)


@triton.jit(do_not_specialize=["part"])
def sample_kernel(
    p_slots, p_positions, p_parameters, p_tables, p_canvas, p_bits, p_known, p_seed,
    p_particle, p_temperature, p_top_p, p_guidance, p_twin, part,
    T: tl.constexpr, PARTS: tl.constexpr, FIRST: tl.constexpr, FIRST_VALUE: tl.constexpr,
    C: tl.constexpr, DRAWS: tl.constexpr, OUTPUTS: tl.constexpr, CATEGORICAL: tl.constexpr,
    LEVELS: tl.constexpr, M: tl.constexpr, MIN_LOG_SCALE: tl.constexpr,
    MIN_WARM_LOG_SCALE: tl.constexpr, LEAST: tl.constexpr, BM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Decide what one step decides, add up the pixel's bits, and move on after its last step."""
    if OVERLAP:
        wait_for_previous_kernel()
    i_b = tl.program_id(0).to(tl.int64)
    slot, step, live = row_of(p_slots, p_positions, i_b, part, T, PARTS)
    if not live:
        return
    before = tl.load(p_slots + i_b - 1, mask=i_b > 0, other=-1)
    if tl.load(p_twin + before, mask=before >= 0, other=-1) == slot:
        return  # the row before is this twin's image
    twin = tl.load(p_twin + slot).to(tl.int64)
    position = step // PARTS
    o_values = step * C
    p_values = p_canvas + slot * (T * PARTS * C) + o_values
    known = tl.load(p_known + slot * T + position) != 0
    nats = tl.zeros([], tl.float32)
    if step >= FIRST:
        p_mine = p_parameters + i_b * OUTPUTS
        seed = tl.load(p_seed + slot).to(tl.uint64, bitcast=True)
        particle = tl.load(p_particle + slot).to(tl.uint64, bitcast=True)
        first_draw = (step * DRAWS).to(tl.uint64)
        temperature = tl.load(p_temperature + slot)
        top_p = tl.load(p_top_p + slot)
        if (known == 0) & ((twin >= 0) | (top_p < 1.0) | (temperature == 0)):
            guidance = tl.load(p_guidance + slot)
            rows = 1 + (twin >= 0).to(tl.int32)
            if CATEGORICAL:
                shape_categorical(
                    p_mine, p_tables, p_values, seed, particle, first_draw, temperature, top_p,
                    guidance, rows, C, OUTPUTS, LEVELS, LEAST,
                )  # fmt: skip
            else:
                shape_mixture(
                    p_mine, p_values, seed, particle, first_draw, temperature, top_p, guidance,
                    rows, C, OUTPUTS, LEVELS, M, MIN_LOG_SCALE, MIN_WARM_LOG_SCALE, LEAST, BM,
                )  # fmt: skip
            tl.debug_barrier()  # one thread has written what all read
            known = known | True
        if CATEGORICAL:
            nats = decide_categorical(
                p_mine, p_tables, p_values, seed, particle, first_draw, known, temperature,
                C, LEVELS,
            )  # fmt: skip
        else:
            nats = decide_mixture(
                p_mine, p_values, seed, particle, first_draw, known, temperature,
                C, LEVELS, M, MIN_LOG_SCALE, BM,
            )  # fmt: skip
    elif not known:  # the network does not model this value
        tl.store(p_values, tl.full([], FIRST_VALUE, tl.uint8))
    p_bit = p_bits + slot * T + position
    bits = tl.load(p_bit, mask=part > 0, other=0.0) + nats / 0.6931471805599453
    tl.store(p_bit, bits)
    if twin >= 0:
        tl.debug_barrier()
        for c in tl.static_range(C):
            value = tl.load(p_values + c)
            tl.store(p_canvas + twin * (T * PARTS * C) + o_values + c, value)
        tl.store(p_bits + twin * T + position, bits)
    if part == PARTS - 1:
        tl.store(p_positions + slot, position + 1)
        tl.store(p_positions + twin, position + 1, mask=twin >= 0)
