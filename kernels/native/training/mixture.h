// Negative log-likelihood of a step's values under mixtures of discretised logistics, and its gradient
// with respect to the head's parameters, in one pass. Must agree with model/heads.py.
#pragma once

#include "../distribution.h"
#include "load_store.h"

namespace scanline {

inline Vec sigmoid(Vec x) {
    const Vec e = exp(-absolute(x));
    return select((VecInt)(x < 0.0f), e, broadcast(1.0f)) / (1.0f + e);
}
// Derivatives of `logistic_log_prob` with respect to mean and log scale.
inline void logistic_gradients(float value, Vec means, Vec log_scales, Vec& grad_mean,
                               Vec& grad_scale) {
    const Vec centred = value - means, inverse = exp(-log_scales);
    const Vec upper = inverse * (centred + 1.0f / 255.0f);
    const Vec lower = inverse * (centred - 1.0f / 255.0f);
    if (value < -0.999f) {
        const Vec slope = sigmoid(-upper);
        grad_mean = -inverse * slope, grad_scale = -upper * slope;
        return;
    }
    if (value > 0.999f) {
        const Vec slope = -sigmoid(lower);
        grad_mean = -inverse * slope, grad_scale = -lower * slope;
        return;
    }
    const Bin bin(centred, inverse);
    const Vec above = 1.0f - 1.0f / bin.upper, below = 1.0f - 1.0f / bin.lower;  // σ(±half - away)
    const Vec slope = 1.0f - above - below;  // of -ln P with respect to the distance
    grad_mean = select((VecInt)(centred < 0.0f), -inverse, inverse) * slope;
    grad_scale = bin.away * slope + bin.half * (above - below) - (bin.up + bin.down) / bin.sinh_ratio;
}

// Return the negative log-likelihood in nats and write its gradient with respect to all parameters.
inline float mixture_nll(const float* parameters, const uint8_t* values, int channels,
                         float* gradient) {
    Mixture mixture;
    parse_mixture(parameters, channels, mixture);
    alignas(64) float means[MAX_CHANNELS][PADDED_MIXTURES], grad_mean[MAX_CHANNELS][PADDED_MIXTURES];
    alignas(64) float grad_scale[MAX_CHANNELS][PADDED_MIXTURES];
    alignas(64) float total[PADDED_MIXTURES], grad_weights[PADDED_MIXTURES];
    float scaled[MAX_CHANNELS];
    std::memcpy(total, mixture.weights, sizeof total);
    for (int c = 0; c < channels; ++c) {
        scaled[c] = to_unit(values[c]);
        channel_means(mixture, c, scaled, means[c]);
        for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
            const Vec mean = load(means[c] + m), scale = load(mixture.log_scales[c] + m);
            Vec by_mean, by_scale;
            store(total + m, load(total + m) + logistic_log_prob(scaled[c], mean, scale));
            logistic_gradients(scaled[c], mean, scale, by_mean, by_scale);
            store(grad_mean[c] + m, by_mean);
            store(grad_scale[c] + m, by_scale);
        }
    }
    const float normaliser = log_sum_exp(mixture.weights, PADDED_MIXTURES);
    const float joint = log_sum_exp(total, PADDED_MIXTURES);
    for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
        const Vec posterior = exp(load(total + m) - joint);
        store(total + m, posterior);
        store(grad_weights + m, exp(load(mixture.weights + m) - normaliser) - posterior);
    }
    const auto part = [&](int number) { return gradient + number * MIXTURES; };
    std::memcpy(gradient, grad_weights, MIXTURES * sizeof(float));
    const float* const raw_scales = parameters + (1 + channels) * MIXTURES;
    for (int c = 0; c < channels; ++c)
        for (int m = 0; m < MIXTURES; ++m) {
            grad_mean[c][m] *= -total[m];
            part(1 + c)[m] = grad_mean[c][m];
            const bool clamped = raw_scales[c * MIXTURES + m] < MIN_LOG_SCALE;
            part(1 + channels + c)[m] = clamped ? 0.0f : -total[m] * grad_scale[c][m];
        }
    int pair = 0;
    for (int c = 1; c < channels; ++c)
        for (int other = 0; other < c; ++other, ++pair)
            for (int m = 0; m < MIXTURES; ++m) {
                const float coefficient = mixture.coefficients[pair][m];
                part(1 + 2 * channels + pair)[m] =
                    grad_mean[c][m] * scaled[other] * (1.0f - coefficient * coefficient);
            }
    float nan_or_zero = 0.0f;  // makes the result NaN if a parameter is, because `max` would drop it
    for (int i = 0; i < MIXTURES * (1 + 2 * channels + channels * (channels - 1) / 2); ++i)
        nan_or_zero += parameters[i] * 0.0f;
    return normaliser - joint + nan_or_zero;
}

}  // namespace scanline
