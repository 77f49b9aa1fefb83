// Distributions over the 256 values of a channel: categorical ones, and mixtures of logistics. The
// definitions, and the shapes' names, are model/heads.py's.
#pragma once

#include <algorithm>

#include "vector.h"

namespace scanline {

constexpr int VALUES = 256;
constexpr int MIXTURES = 10, MIX = 16;  // components, and those padded to whole vectors
constexpr int MAX_CHANNELS = 3, MAX_PAIRS = 3;
constexpr float MIN_LOG_SCALE = -7.0f;
constexpr float MIN_WARM_LOG_SCALE = -9.5f;  // once tempered: all of it in one bin already
constexpr float MIN_LOG_PROB = -1e4f;  // so that guidance never subtracts infinities
constexpr float UNLIKELY = -60.0f;  // e to this is still exact in float32
constexpr float LN2 = 0.693147180559945309f;
constexpr float NOTHING = -1e30f;  // the logarithm of padding: e to this is 0

inline float to_unit(int value) { return static_cast<float>(value) / 127.5f - 1.0f; }

// ln Σ e^x, over `size` values in whole vectors.
inline float log_sum_exp(const float* x, int size) {
    Vec top = load(x);
    for (int i = LANES; i < size; i += LANES) top = max(top, load(x + i));
    const float best = largest(top);
    Vec total = {};
    for (int i = 0; i < size; i += LANES) total = total + exp(load(x + i) - best);
    return best + std::log(sum(total));
}

// weight ∝ e^((x - max) / heat)
inline void softmax_weights(const float* x, int size, float heat, float* weights) {
    Vec top = load(x);
    for (int i = LANES; i < size; i += LANES) top = max(top, load(x + i));
    const float best = largest(top);
    for (int i = 0; i < size; i += LANES) store(weights + i, exp((load(x + i) - best) / heat));
}

// The first index whose cumulated weight exceeds u × total; the last with weight if rounding, or a weight
// that is no number, lets none. Sums run in groups of 16, then inside one group.
inline int inverse_cdf(const float* weights, int size, float u) {
    constexpr int GROUP = 16;
    static_assert(GROUP % LANES == 0);
    float before[VALUES / GROUP + 1];
    before[0] = 0.0f;
    const int groups = (size + GROUP - 1) / GROUP;
    for (int group = 0; group < groups; ++group) {
        Vec total = {};
        for (int i = 0; i < GROUP; i += LANES) total = total + load(weights + group * GROUP + i);
        before[group + 1] = before[group] + sum(total);
    }
    const float threshold = u * before[groups];
    int group = 0;
    while (group < groups - 1 && !(before[group + 1] > threshold)) ++group;
    float cumulated = before[group];
    int index = group * GROUP;
    const int last = (index + GROUP < size ? index + GROUP : size) - 1;
    for (; index < last; ++index) {
        cumulated += weights[index];
        if (cumulated > threshold) break;
    }
    // Added up in another order they may fall short of u: then it is the last that has any weight.
    while (index > 0 && weights[index] == 0.0f) --index;
    return index;
}

inline int first_largest(const float* x, int size) {
    int best = 0;
    for (int i = 1; i < size; ++i)
        if (x[i] > x[best]) best = i;
    return best;
}

// A value's bin, 2/255 wide, under logistics, one a lane: half its width and the distance of its middle
// from the mean, in scales, and what its mass is made of.
//
//   σ(away + half) - σ(away - half) = half · breadth · e^-away / (upper · lower)
struct Bin {
    Vec half, away, up, down;  // e^half and e^-half
    Vec upper, lower;          // 1 + e^(half - away), 1 + e^(-half - away)
    Vec breadth;               // 2 sinh(half) / half

    Bin(Vec centred, Vec inverse)
        : half(inverse * (1.0f / 255.0f)), away(absolute(inverse * centred)), up(exp(half)),
          down(exp(-half)) {
        const Vec near = exp(-away), h2 = half * half;
        upper = 1.0f + near * up, lower = 1.0f + near * down;
        // By its series where the difference would cancel.
        Vec series = fma(h2, broadcast(1.0f / 72.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 42.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 20.0f), broadcast(1.0f));
        series = fma(h2 * series, broadcast(1.0f / 6.0f), broadcast(1.0f)) * 2.0f;
        breadth = select((VecInt)(half < 1.0f), series, (up - down) / half);
    }
};

// ln P(value) of discretised logistics, one a lane.
inline Vec logistic_log_prob(float value, Vec means, Vec log_scales) {
    const Vec centred = value - means;
    const Vec inverse = exp(-log_scales);
    if (value < -0.999f) return -softplus(inverse * (centred + 1.0f / 255.0f) * -1.0f);
    if (value > 0.999f) return -softplus(inverse * (centred - 1.0f / 255.0f));
    const Bin bin(centred, inverse);
    return log(bin.breadth / (bin.upper * bin.lower)) - bin.away - log_scales - 5.54126355f;  // ln 255
}

struct Mixture {
    alignas(64) float weights[MIX];  // log weights, normalised or not
    alignas(64) float means[MAX_CHANNELS][MIX];
    alignas(64) float log_scales[MAX_CHANNELS][MIX];
    alignas(64) float coefficients[MAX_PAIRS][MIX];
};

inline void split(const float* parameters, int channels, Mixture& mixture) {
    auto take = [&](float (&part)[MIX], float padding) {
        for (int m = 0; m < MIX; ++m) part[m] = m < MIXTURES ? parameters[m] : padding;
        parameters += MIXTURES;
    };
    const int pairs = channels * (channels - 1) / 2;
    take(mixture.weights, NOTHING);
    for (int channel = 0; channel < channels; ++channel) take(mixture.means[channel], 0.0f);
    for (int channel = 0; channel < channels; ++channel) {
        float* scales = mixture.log_scales[channel];
        take(mixture.log_scales[channel], 0.0f);
        for (int m = 0; m < MIX; m += LANES)
            store(scales + m, max(load(scales + m), broadcast(MIN_LOG_SCALE)));
    }
    for (int pair = 0; pair < pairs; ++pair) {
        float* part = mixture.coefficients[pair];
        take(mixture.coefficients[pair], 0.0f);
        for (int m = 0; m < MIX; m += LANES) store(part + m, tanh(load(part + m)));
    }
}

// A channel's means once the earlier channels' values (in [-1, 1]) are known.
inline void channel_means(const Mixture& mixture, int channel, const float* earlier,
                          float* means) {
    for (int m = 0; m < MIX; m += LANES) {
        Vec mean = load(mixture.means[channel] + m);
        for (int other = 0; other < channel; ++other) {
            const int pair = channel * (channel - 1) / 2 + other;
            mean = mean + load(mixture.coefficients[pair] + m) * earlier[other];
        }
        store(means + m, mean);
    }
}

inline void add_log_probs(float value, const float* means, const float* log_scales,
                          float* total) {
    for (int m = 0; m < MIX; m += LANES) {
        const Vec each = logistic_log_prob(value, load(means + m), load(log_scales + m));
        store(total + m, load(total + m) + each);
    }
}

// P of each of the 256 values under tempered logistics that begin with these weights, a mixture's
// of one channel: what add_log_probs gives a value at a time, here a vector of values at a time.
inline void value_probabilities(const float* weights, const float* means, const float* log_scales,
                                float* total) {
    std::fill_n(total, VALUES, 0.0f);
    for (int m = 0; m < MIXTURES; ++m) {
        const float inverse = std::exp(-log_scales[m]), half = inverse / 255.0f;
        const float up = std::exp(half), down = std::exp(-half);
        const float width = 2.0f * std::sinh(half);
        alignas(64) float lanes[LANES];
        for (int i = 0; i < LANES; ++i) lanes[i] = static_cast<float>(i);
        for (int v = 0; v < VALUES; v += LANES) {
            const Vec x = (load(lanes) + static_cast<float>(v)) / 127.5f - 1.0f;
            const Vec near = exp(-absolute((x - means[m]) * inverse));
            const Vec mass = width * near / ((1.0f + near * up) * (1.0f + near * down));
            store(total + v, fma(mass, broadcast(weights[m]), load(total + v)));
        }
        // The first and the last bin reach to infinity.
        const auto open_bin = [&](int value, float away) {
            const float x = to_unit(value), near = std::exp(-std::fabs((x - means[m]) * inverse));
            const float closed = width * near / ((1.0f + near * up) * (1.0f + near * down));
            total[value] += weights[m] * (1.0f / (1.0f + std::exp(away)) - closed);
        };
        open_bin(0, -inverse * (to_unit(0) - means[m] + 1.0f / 255.0f));
        open_bin(VALUES - 1, inverse * (to_unit(VALUES - 1) - means[m] - 1.0f / 255.0f));
    }
}

// Zero all but the likeliest values that hold `top_p` of the weight; of equals the lower is first.
inline void apply_top_p(float* weights, int size, float top_p) {
    Vec sums = {};
    for (int i = 0; i < size; i += LANES) sums = sums + load(weights + i);
    const float total = sum(sums);
    // The sort would drop these anyway: all of them hold less than half of what may be lost.
    const float least = (1.0f - top_p) * total / (2 * VALUES);
    int order[VALUES], likely = 0;
    for (int i = 0; i < size; ++i) {
        if (weights[i] >= least) order[likely++] = i;
        else weights[i] = 0.0f;
    }
    std::sort(order, order + likely, [&](int a, int b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    });
    float before = 0.0f;
    for (int i = 0; i < likely; ++i) {
        const float weight = weights[order[i]];
        if (before >= top_p * total) weights[order[i]] = 0.0f;
        before += weight;
    }
}

}  // namespace scanline
