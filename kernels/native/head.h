// From the head's parameters to values: exact bits, and sampling by inverse CDF. The definition,
// and the shapes' names, are model/heads.py's.
#pragma once

#include "vector.h"

namespace scanline {

constexpr int VALUES = 256;
constexpr int MIXTURES = 10, MIX = 16;  // components, and those padded to whole vectors
constexpr int MAX_CHANNELS = 3, MAX_PAIRS = 3;
constexpr float MIN_LOG_SCALE = -7.0f;
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

// The first index whose cumulated weight exceeds u × total; the last one if rounding, or a weight
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
    return index;
}

inline int first_largest(const float* x, int size) {
    int best = 0;
    for (int i = 1; i < size; ++i)
        if (x[i] > x[best]) best = i;
    return best;
}

// ln P(value) of discretised logistics, one a lane. Mathematically the reference's; the mass of a
// bin is written without the difference of two sigmoids, which cancels far from the mean.
inline Vec logistic_log_prob(float value, Vec means, Vec log_scales) {
    const Vec centred = value - means;
    const Vec inverse = exp(-log_scales);
    if (value < -0.999f) return -softplus(inverse * (centred + 1.0f / 255.0f) * -1.0f);
    if (value > 0.999f) return -softplus(inverse * (centred - 1.0f / 255.0f));
    const Vec half = inverse * (1.0f / 255.0f);
    const Vec away = absolute(inverse * centred);
    const Vec near = exp(-away), up = exp(half), down = exp(-half);
    // up - down = 2 sinh(half), by its series where the difference would cancel
    const Vec h2 = half * half;
    Vec series = fma(h2, broadcast(1.0f / 72.0f), broadcast(1.0f));
    series = fma(h2 * series, broadcast(1.0f / 42.0f), broadcast(1.0f));
    series = fma(h2 * series, broadcast(1.0f / 20.0f), broadcast(1.0f));
    series = fma(h2 * series, broadcast(1.0f / 6.0f), broadcast(1.0f)) * half * 2.0f;
    const Vec width = select((VecInt)(half < 1.0f), series, up - down);
    const Vec inside = width * near / ((1.0f + near * up) * (1.0f + near * down));
    const Vec log_density = -away - log_scales - 2.0f * log1p(near) - 4.84811636f;  // ln 127.5
    const Vec log_inside = log(max(inside, broadcast(1e-12f)));
    return select((VecInt)(inside > 1e-5f), log_inside, log_density);
}

// What one step decides: `values` are read where known, else drawn and written; gives their bits.
struct Draw {
    const float* uniforms;
    float temperature;
    bool known;
};

class Head {
public:
    Head() = default;
    // `tables`: [pairs, 256, 256] for categorical heads of several channels.
    Head(bool categorical, int channels, const float* tables)
        : categorical_(categorical), channels_(channels), tables_(0) {
        const int pairs = channels * (channels - 1) / 2;
        if (!categorical || pairs == 0) return;
        const size_t count = static_cast<size_t>(pairs) * VALUES * VALUES;
        tables_ = Buffer<float>(count);
        std::memcpy(tables_.get(), tables, count * sizeof(float));
    }

    float decide(const float* parameters, const Draw& draw, uint8_t* values) const {
        return categorical_ ? categorical(parameters, draw, values)
                            : mixture(parameters, draw, values);
    }

private:
    float categorical(const float* parameters, const Draw& draw, uint8_t* values) const {
        alignas(64) float logits[VALUES], weights[VALUES];
        float nats = 0.0f;
        for (int channel = 0; channel < channels_; ++channel) {
            std::memcpy(logits, parameters + channel * VALUES, sizeof logits);
            for (int other = 0; other < channel; ++other) {
                const int pair = channel * (channel - 1) / 2 + other;
                const float* row = tables_.get() + (pair * VALUES + values[other]) * VALUES;
                for (int i = 0; i < VALUES; i += LANES)
                    store(logits + i, load(logits + i) + load(row + i));
            }
            if (!draw.known) {
                int value;
                if (draw.temperature == 0.0f) {
                    value = first_largest(logits, VALUES);
                } else {
                    softmax_weights(logits, VALUES, draw.temperature, weights);
                    value = inverse_cdf(weights, VALUES, draw.uniforms[channel]);
                }
                values[channel] = static_cast<uint8_t>(value);
            }
            nats += log_sum_exp(logits, VALUES) - logits[values[channel]];
        }
        return nats / LN2;
    }

    struct Mixture {
        alignas(64) float weights[MIX];  // log weights, normalised or not
        alignas(64) float means[MAX_CHANNELS][MIX];
        alignas(64) float log_scales[MAX_CHANNELS][MIX];
        alignas(64) float coefficients[MAX_PAIRS][MIX];
    };

    void split(const float* parameters, Mixture& mixture) const {
        auto take = [&](float (&part)[MIX], float padding) {
            for (int m = 0; m < MIX; ++m) part[m] = m < MIXTURES ? parameters[m] : padding;
            parameters += MIXTURES;
        };
        const int pairs = channels_ * (channels_ - 1) / 2;
        take(mixture.weights, NOTHING);
        for (int channel = 0; channel < channels_; ++channel) take(mixture.means[channel], 0.0f);
        for (int channel = 0; channel < channels_; ++channel) {
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
    static void channel_means(const Mixture& mixture, int channel, const float* earlier,
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

    float mixture(const float* parameters, const Draw& draw, uint8_t* values) const {
        Mixture mixture;
        split(parameters, mixture);
        if (!draw.known && draw.temperature != 0.0f) sample(mixture, draw, values);
        const float normaliser = log_sum_exp(mixture.weights, MIX);
        for (int m = 0; m < MIX; m += LANES)
            store(mixture.weights + m, load(mixture.weights + m) - normaliser);
        if (!draw.known && draw.temperature == 0.0f) most_likely(mixture, values);
        alignas(64) float means[MIX], total[MIX];
        std::memcpy(total, mixture.weights, sizeof total);
        float scaled[MAX_CHANNELS];
        for (int channel = 0; channel < channels_; ++channel) {
            scaled[channel] = to_unit(values[channel]);
            channel_means(mixture, channel, scaled, means);
            add_log_probs(scaled[channel], means, mixture.log_scales[channel], total);
        }
        return log_sum_exp(total, MIX) / -LN2;
    }

    static void add_log_probs(float value, const float* means, const float* log_scales,
                              float* total) {
        for (int m = 0; m < MIX; m += LANES) {
            const Vec each = logistic_log_prob(value, load(means + m), load(log_scales + m));
            store(total + m, load(total + m) + each);
        }
    }

    void sample(const Mixture& mixture, const Draw& draw, uint8_t* values) const {
        alignas(64) float weights[MIX], means[MIX];
        softmax_weights(mixture.weights, MIX, draw.temperature, weights);
        const int component = inverse_cdf(weights, MIXTURES, draw.uniforms[0]);
        float scaled[MAX_CHANNELS];
        for (int channel = 0; channel < channels_; ++channel) {
            channel_means(mixture, channel, scaled, means);
            const float u = draw.uniforms[1 + channel];
            const float scale = std::exp(mixture.log_scales[channel][component]);
            const float drawn =
                means[component] + draw.temperature * scale * (std::log(u) - std::log1p(-u));
            // Rounding half up gives exactly the bins of the likelihood, edges included. Written so
            // that what is no number becomes 0: no conversion out of range.
            const float value = std::floor((drawn + 1.0f) * 127.5f + 0.5f);
            values[channel] = static_cast<uint8_t>(value > 0.0f ? (value < 255.0f ? value : 255.0f)
                                                                : 0.0f);
            scaled[channel] = to_unit(values[channel]);
        }
    }

    // The likeliest value of each channel in turn; `mixture.weights` are normalised.
    void most_likely(const Mixture& mixture, uint8_t* values) const {
        alignas(64) float log_weights[MIX], means[MIX], total[MIX];
        std::memcpy(log_weights, mixture.weights, sizeof log_weights);
        float scaled[MAX_CHANNELS];
        for (int channel = 0; channel < channels_; ++channel) {
            channel_means(mixture, channel, scaled, means);
            float best = 0.0f;
            int chosen = 0;
            for (int value = 0; value < VALUES; ++value) {
                std::memcpy(total, log_weights, sizeof total);
                add_log_probs(to_unit(value), means, mixture.log_scales[channel], total);
                const float likelihood = log_sum_exp(total, MIX);
                if (value == 0 || likelihood > best) {
                    best = likelihood;
                    chosen = value;
                }
            }
            values[channel] = static_cast<uint8_t>(chosen);
            scaled[channel] = to_unit(chosen);
            // The components' weights given the value just chosen (Bayes).
            add_log_probs(scaled[channel], means, mixture.log_scales[channel], log_weights);
        }
    }

    bool categorical_ = false;
    int channels_ = 1;
    Buffer<float> tables_;
};

}  // namespace scanline
