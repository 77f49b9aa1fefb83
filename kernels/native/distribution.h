// Distributions over a channel's 256 values: categorical, and mixtures of discretised logistics.
// For definitions and shapes see model/heads.py.
#pragma once

#include <algorithm>

#include "functions.h"

namespace scanline {

constexpr int VALUES = 256;
constexpr int MIXTURES = 10, PADDED_MIXTURES = 16;  // components, and the same padded to whole vectors
constexpr int MAX_CHANNELS = 3, MAX_PAIRS = 3;
constexpr float MIN_LOG_SCALE = -7.0f;
constexpr float MIN_WARM_LOG_SCALE = -9.5f;  // with temperature applied: all mass is in one bin
constexpr float MIN_LOG_PROB = -1e4f;  // floor, so that guidance never subtracts infinities
constexpr float MIN_EXACT_LOG_PROB = -60.0f;  // e^x is still accurate in float32
constexpr float LN2 = 0.693147180559945309f;
constexpr float LOG_ZERO = -1e30f;  // log probability of padding: e^x is 0

inline float to_unit(int value) { return static_cast<float>(value) / 127.5f - 1.0f; }

// ln Σ e^x over `size` values, a multiple of LANES.
inline float log_sum_exp(const float* x, int size) {
    const float maximum = row_max(x, size);
    Lanes total;
    for_each_vector(size, [&](int i, auto part) ALWAYS_INLINE {
        total[part] = total[part] + exp(load(x + i) - maximum);
    });
    return maximum + log(horizontal_sum(total));
}

// weight ∝ e^((x - max) / temperature)
inline void softmax_weights(const float* x, int size, float temperature, float* weights) {
    const float maximum = row_max(x, size);
    for (int i = 0; i < size; i += LANES)
        store(weights + i, exp((load(x + i) - maximum) / temperature));
}

// Return the first index whose cumulative weight exceeds u × total, or the last index with weight if
// none does, because of rounding or NaN. Weights are summed in groups of 16, then within one group.
inline int inverse_cdf(const float* weights, int size, float u) {
    constexpr int GROUP = SUM_LANES;
    float before[VALUES / GROUP + 1];
    before[0] = 0.0f;
    const int groups = (size + GROUP - 1) / GROUP;
    for (int group = 0; group < groups; ++group)
        before[group + 1] = before[group] + row_sum(weights + group * GROUP, GROUP);
    const float threshold = u * before[groups];
    int group = 0;
    while (group < groups - 1 && !(before[group + 1] > threshold)) ++group;
    float cumulative = before[group];
    int index = group * GROUP;
    const int last = (index + GROUP < size ? index + GROUP : size) - 1;
    for (; index < last; ++index) {
        cumulative += weights[index];
        if (cumulative > threshold) break;
    }
    // The threshold may not be reached, because the groups are summed in another order. Then take the
    // last index with weight.
    while (index > 0 && weights[index] == 0.0f) --index;
    return index;
}

inline int argmax(const float* x, int size) {
    int maximum = 0;
    for (int i = 1; i < size; ++i)
        if (x[i] > x[maximum]) maximum = i;
    return maximum;
}

// A value's bin, 2/255 wide, under one logistic per lane. `half` is half the bin's width and `away` the
// distance of its centre from the mean, both in units of the logistic's scale. The bin's mass is
//
//   σ(away + half) - σ(away - half) = half · sinh_ratio · e^-away / (upper · lower)
struct Bin {
    Vec half, away, up, down, near;  // e^half, e^-half and e^-away
    Vec upper, lower;                // 1 + e^(half - away), 1 + e^(-half - away)
    Vec sinh_ratio;                  // 2 sinh(half) / half

    Bin(Vec centred, Vec inverse)
        : half(inverse * (1.0f / 255.0f)), away(absolute(inverse * centred)), up(exp(half)),
          down(exp(-half)), near(exp(-away)) {
        const Vec h2 = half * half;
        upper = 1.0f + near * up, lower = 1.0f + near * down;
        // For small `half` use the series, because the difference of exponentials would cancel.
        Vec series = fma(h2, broadcast(1.0f / 72.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 42.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 20.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 6.0f), broadcast(1.0f)) * 2.0f;
        sinh_ratio = select((VecInt)(half < 1.0f), series, (up - down) / half);
    }
    Vec width() const { return half * sinh_ratio; }  // 2 sinh(half)
};

// ln P(value) under one discretised logistic per lane.
inline Vec logistic_log_prob(float value, Vec means, Vec log_scales) {
    const Vec centred = value - means;
    const Vec inverse = exp(-log_scales);
    if (value < -0.999f) return -softplus(inverse * (centred + 1.0f / 255.0f) * -1.0f);
    if (value > 0.999f) return -softplus(inverse * (centred - 1.0f / 255.0f));
    const Bin bin(centred, inverse);
    constexpr float LN255 = 5.54126355f;
    return log(bin.sinh_ratio / (bin.upper * bin.lower)) - bin.away - log_scales - LN255;
}

// A mixture head's parameters, padded to whole vectors.
struct Mixture {
    alignas(64) float weights[PADDED_MIXTURES];  // log weights, normalised or not
    alignas(64) float means[MAX_CHANNELS][PADDED_MIXTURES];
    alignas(64) float log_scales[MAX_CHANNELS][PADDED_MIXTURES];
    alignas(64) float coefficients[MAX_PAIRS][PADDED_MIXTURES];
};

// Unpack a head's parameters, clamp the log scales and apply tanh to the coefficients.
inline void parse_mixture(const float* parameters, int channels, Mixture& mixture) {
    auto take = [&](float (&part)[PADDED_MIXTURES], float padding) {
        for (int m = 0; m < PADDED_MIXTURES; ++m) part[m] = m < MIXTURES ? parameters[m] : padding;
        parameters += MIXTURES;
    };
    const int pairs = channels * (channels - 1) / 2;
    take(mixture.weights, LOG_ZERO);
    for (int channel = 0; channel < channels; ++channel) take(mixture.means[channel], 0.0f);
    for (int channel = 0; channel < channels; ++channel) {
        float* scales = mixture.log_scales[channel];
        take(mixture.log_scales[channel], 0.0f);
        for (int m = 0; m < PADDED_MIXTURES; m += LANES)
            store(scales + m, max(load(scales + m), broadcast(MIN_LOG_SCALE)));
    }
    for (int pair = 0; pair < pairs; ++pair) {
        float* part = mixture.coefficients[pair];
        take(mixture.coefficients[pair], 0.0f);
        for (int m = 0; m < PADDED_MIXTURES; m += LANES) store(part + m, tanh(load(part + m)));
    }
}

// Means of a channel's logistics given the earlier channels' values, which are scaled to [-1, 1].
inline void channel_means(const Mixture& mixture, int channel, const float* earlier,
                          float* means) {
    for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
        Vec mean = load(mixture.means[channel] + m);
        for (int other = 0; other < channel; ++other) {
            const int pair = channel * (channel - 1) / 2 + other;
            mean = mean + load(mixture.coefficients[pair] + m) * earlier[other];
        }
        store(means + m, mean);
    }
}

// Add ln P(value) under each component to `total`.
inline void add_log_probs(float value, const float* means, const float* log_scales,
                          float* total) {
    for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
        const Vec each = logistic_log_prob(value, load(means + m), load(log_scales + m));
        store(total + m, load(total + m) + each);
    }
}

// Probabilities of all 256 values of one channel under a mixture of logistics. The same quantity as
// `add_log_probs`, vectorised over values instead of components.
inline void value_probabilities(const float* weights, const float* means, const float* log_scales,
                                float* total) {
    alignas(64) float inverses[PADDED_MIXTURES], ups[PADDED_MIXTURES], downs[PADDED_MIXTURES],
        widths[PADDED_MIXTURES], low_tails[PADDED_MIXTURES], high_tails[PADDED_MIXTURES];
    for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
        const Vec inverse = exp(-load(log_scales + m));
        // Mass of an edge's bin beyond its inner part of width 2/255. The bin extends to infinity in
        // direction `sign`.
        const auto tail = [&](int value, float sign) ALWAYS_INLINE {
            const Bin bin(to_unit(value) - load(means + m), inverse);
            const Vec inwards = inverse * (to_unit(value) - load(means + m)) * sign - bin.half;
            return 1.0f / (1.0f + exp(inwards)) - bin.width() * bin.near / (bin.upper * bin.lower);
        };
        const Bin bin(Vec{}, inverse);
        store(inverses + m, inverse);
        store(ups + m, bin.up);
        store(downs + m, bin.down);
        store(widths + m, bin.width());
        store(low_tails + m, tail(0, -1.0f));
        store(high_tails + m, tail(VALUES - 1, 1.0f));
    }
    alignas(64) float lanes[LANES];
    for (int i = 0; i < LANES; ++i) lanes[i] = static_cast<float>(i);
    std::fill_n(total, VALUES, 0.0f);
    for (int m = 0; m < MIXTURES; ++m) {
        for (int v = 0; v < VALUES; v += LANES) {
            const Vec x = (load(lanes) + static_cast<float>(v)) / 127.5f - 1.0f;
            const Vec near = exp(-absolute((x - means[m]) * inverses[m]));
            const Vec mass = widths[m] * near / ((1.0f + near * ups[m]) * (1.0f + near * downs[m]));
            store(total + v, fma(mass, broadcast(weights[m]), load(total + v)));
        }
        total[0] += weights[m] * low_tails[m];
        total[VALUES - 1] += weights[m] * high_tails[m];
    }
}

// Nucleus sampling: zero all weights except the most likely ones that hold `top_p` of the total. Ties
// are broken in favour of the lower value.
inline void apply_top_p(float* weights, int size, float top_p) {
    const float total = row_sum(weights, size);
    // Dropped before sorting to save time: together these hold less than half of 1 - top_p.
    const float cutoff = (1.0f - top_p) * total / (2 * VALUES);
    int order[VALUES], count = 0;
    for (int i = 0; i < size; ++i) {
        if (weights[i] >= cutoff) order[count++] = i;
        else weights[i] = 0.0f;
    }
    std::sort(order, order + count, [&](int a, int b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    });
    float before = 0.0f;
    for (int i = 0; i < count; ++i) {
        const float weight = weights[order[i]];
        if (before >= top_p * total) weights[order[i]] = 0.0f;
        before += weight;
    }
}

}  // namespace scanline
