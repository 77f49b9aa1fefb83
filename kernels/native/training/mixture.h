// Mixtures of discretised logistics: the nats of a step's values and their gradient by the head's
// parameters, in one pass. The definition is model/heads.py's.
#pragma once

#include "../distribution.h"
#include "load_store.h"

namespace scanline {

inline Vec sigmoid(Vec x) {
    const Vec e = exp(-absolute(x));
    return select((VecInt)(x < 0.0f), e, broadcast(1.0f)) / (1.0f + e);
}
// The derivatives of `logistic_log_prob` by mean and log scale.
inline void logistic_slopes(float value, Vec means, Vec log_scales, Vec& by_mean, Vec& by_scale) {
    const Vec centred = value - means, inverse = exp(-log_scales);
    const Vec upper = inverse * (centred + 1.0f / 255.0f);
    const Vec lower = inverse * (centred - 1.0f / 255.0f);
    if (value < -0.999f) {
        const Vec slope = sigmoid(-upper);
        by_mean = -inverse * slope, by_scale = -upper * slope;
        return;
    }
    if (value > 0.999f) {
        const Vec slope = -sigmoid(lower);
        by_mean = -inverse * slope, by_scale = -lower * slope;
        return;
    }
    const Bin bin(centred, inverse);
    const Vec above = 1.0f - 1.0f / bin.upper, below = 1.0f - 1.0f / bin.lower;  // σ(± half - away)
    const Vec slope = 1.0f - above - below;  // of -ln P by the distance
    by_mean = select((VecInt)(centred < 0.0f), -inverse, inverse) * slope;
    by_scale = bin.away * slope + bin.half * (above - below) - (bin.up + bin.down) / bin.breadth;
}

// Gives the nats; `gradient` gets their derivatives by all the parameters.
inline float mixture_nll(const float* parameters, const uint8_t* values, int channels,
                          float* gradient) {
    Mixture mixture;
    split(parameters, channels, mixture);
    alignas(64) float means[MAX_CHANNELS][MIX], by_mean[MAX_CHANNELS][MIX];
    alignas(64) float by_scale[MAX_CHANNELS][MIX], total[MIX], share[MIX];
    float scaled[MAX_CHANNELS];
    std::memcpy(total, mixture.weights, sizeof total);
    for (int c = 0; c < channels; ++c) {
        scaled[c] = to_unit(values[c]);
        channel_means(mixture, c, scaled, means[c]);
        for (int m = 0; m < MIX; m += LANES) {
            const Vec mean = load(means[c] + m), scale = load(mixture.log_scales[c] + m);
            Vec mean_slope, scale_slope;
            store(total + m, load(total + m) + logistic_log_prob(scaled[c], mean, scale));
            logistic_slopes(scaled[c], mean, scale, mean_slope, scale_slope);
            store(by_mean[c] + m, mean_slope);
            store(by_scale[c] + m, scale_slope);
        }
    }
    const float normaliser = log_sum_exp(mixture.weights, MIX), joint = log_sum_exp(total, MIX);
    for (int m = 0; m < MIX; m += LANES) {
        const Vec posterior = exp(load(total + m) - joint);
        store(total + m, posterior);
        store(share + m, exp(load(mixture.weights + m) - normaliser) - posterior);
    }
    const auto part = [&](int number) { return gradient + number * MIXTURES; };
    std::memcpy(gradient, share, MIXTURES * sizeof(float));
    const float* const raw_scales = parameters + (1 + channels) * MIXTURES;
    for (int c = 0; c < channels; ++c)
        for (int m = 0; m < MIXTURES; ++m) {
            by_mean[c][m] *= -total[m];
            part(1 + c)[m] = by_mean[c][m];
            const bool held = raw_scales[c * MIXTURES + m] < MIN_LOG_SCALE;
            part(1 + channels + c)[m] = held ? 0.0f : -total[m] * by_scale[c][m];
        }
    int pair = 0;
    for (int c = 1; c < channels; ++c)
        for (int other = 0; other < c; ++other, ++pair)
            for (int m = 0; m < MIXTURES; ++m) {
                const float coefficient = mixture.coefficients[pair][m];
                part(1 + 2 * channels + pair)[m] =
                    by_mean[c][m] * scaled[other] * (1.0f - coefficient * coefficient);
            }
    float lost = 0.0f;  // or NaN: what is no number would be taken for the smallest
    for (int i = 0; i < MIXTURES * (1 + 2 * channels + channels * (channels - 1) / 2); ++i)
        lost += parameters[i] * 0.0f;
    return normaliser - joint + lost;
}

}  // namespace scanline
