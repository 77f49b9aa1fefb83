// Output head: exact bits of values, and sampling by inverse CDF, from the head's parameters. For
// definitions see model/heads.py.
#pragma once

#include <cfloat>

#include "distribution.h"

namespace scanline {

// Sampling options of one step.
struct Sampling {
    float uniforms[MAX_CHANNELS + 1];  // unset if the values are known
    float temperature, top_p, guidance;
    bool known;
};

class Head {
public:
    Head(bool categorical, int channels) : categorical_(categorical), channels_(channels) {}

    // Sample `values` unless they are known, and return their bits. `unconditional` holds the
    // parameters of the image's unconditional twin, or is null if it has none.
    float decide(const float* parameters, const float* unconditional, Sampling sampling,
                 uint8_t* values) const {
        // The same rule as in Head.sample (model/heads.py), which names the others.
        if (!sampling.known &&
            (unconditional || sampling.top_p < 1.0f || sampling.temperature == 0.0f)) {
            sample_from_values(parameters, unconditional, sampling, values);
            sampling.known = true;
        }
        return categorical_ ? decide_categorical(parameters, sampling, values)
                            : decide_mixture(parameters, sampling, values);
    }

private:
    // Write ln P of all values of a channel at a temperature, given the earlier channels' values. Very
    // small probabilities are accurate only where `relevant` > 0, and nowhere if it is null.
    void log_probs(const float* parameters, int channel, const uint8_t* values, float temperature,
                   const float* relevant, float* result) const {
        if (categorical_) {
            // Subtract the maximum before dividing, so that a tiny temperature does not overflow.
            float maximum = parameters[0];
            for (int i = 1; i < VALUES; ++i) maximum = std::max(maximum, parameters[i]);
            for (int i = 0; i < VALUES; i += LANES)
                store(result + i, (load(parameters + i) - maximum) / temperature);
        } else {
            Mixture mixture;
            parse_mixture(parameters, channels_, mixture);
            alignas(64) float weights[PADDED_MIXTURES], means[PADDED_MIXTURES];
            const float log_temperature = log(std::max(temperature, FLT_MIN));
            const float maximum =
                *std::max_element(mixture.weights, mixture.weights + PADDED_MIXTURES);
            for (int m = 0; m < PADDED_MIXTURES; m += LANES)
                store(weights + m, max((load(mixture.weights + m) - maximum) / temperature,
                                       broadcast(MIN_LOG_PROB)));
            for (int c = 0; c <= channel; ++c)
                for (int m = 0; m < PADDED_MIXTURES; m += LANES) {
                    float* const scales = mixture.log_scales[c] + m;
                    store(scales,
                          max(load(scales) + log_temperature, broadcast(MIN_WARM_LOG_SCALE)));
                }
            float scaled[MAX_CHANNELS];
            for (int c = 0; c < channel; ++c) {  // posterior weights given the earlier values (Bayes)
                scaled[c] = to_unit(values[c]);
                channel_means(mixture, c, scaled, means);
                add_log_probs(scaled[c], means, mixture.log_scales[c], weights);
            }
            std::fill(weights + MIXTURES, weights + PADDED_MIXTURES, LOG_ZERO);
            channel_means(mixture, channel, scaled, means);
            alignas(64) float probabilities[PADDED_MIXTURES], each[PADDED_MIXTURES];
            const float max_weight = *std::max_element(weights, weights + MIXTURES);
            for (int m = 0; m < PADDED_MIXTURES; m += LANES)
                store(weights + m, load(weights + m) - max_weight);
            softmax_weights(weights, PADDED_MIXTURES, 1.0f, probabilities);
            value_probabilities(probabilities, means, mixture.log_scales[channel], result);
            for (int i = 0; i < VALUES; i += LANES)
                store(result + i, log(max(load(result + i), broadcast(1e-30f))));
            for (int i = 0; relevant && i < VALUES; ++i) {
                if (relevant[i] <= 0.0f || result[i] > MIN_EXACT_LOG_PROB) continue;
                std::memcpy(each, weights, sizeof each);
                add_log_probs(to_unit(i), means, mixture.log_scales[channel], each);
                result[i] = log_sum_exp(each, PADDED_MIXTURES);
            }
        }
        const float normaliser = log_sum_exp(result, VALUES);
        for (int i = 0; i < VALUES; i += LANES)
            store(result + i, max(load(result + i) - normaliser, broadcast(MIN_LOG_PROB)));
    }

    // Sample each channel from its 256 values with temperature, guidance and top-p; take the most
    // likely value at temperature 0. With guidance > 1 and top-p, the guided distribution is first
    // restricted to the values in the top 1 - (1 - top_p) / 4 of the conditional one.
    void sample_from_values(const float* parameters, const float* unconditional,
                            const Sampling& sampling, uint8_t* values) const {
        alignas(64) float guided[VALUES], without_label[VALUES], candidates[VALUES];
        const bool restricted = unconditional && sampling.guidance > 1.0f && sampling.top_p < 1.0f;
        const bool greedy = sampling.temperature == 0.0f;
        const float temperature = greedy ? 1.0f : sampling.temperature;
        const int first = categorical_ ? 0 : 1;  // skip the uniform that selects a mixture's component
        for (int channel = 0; channel < channels_; ++channel) {
            std::fill_n(candidates, VALUES, 1.0f);
            // Guidance divides p(x|label) by p(x), so both must be accurate where both are tiny.
            log_probs(parameters, channel, values, temperature,
                      unconditional && !restricted ? candidates : nullptr, guided);
            if (unconditional) {
                if (restricted) {
                    softmax_weights(guided, VALUES, 1.0f, candidates);
                    apply_top_p(candidates, VALUES, 1.0f - 0.25f * (1.0f - sampling.top_p));
                }
                log_probs(unconditional, channel, values, temperature, candidates,
                          without_label);
                const Vec weight = broadcast(1.0f - sampling.guidance);
                for (int i = 0; i < VALUES; i += LANES)
                    store(guided + i, fma(load(without_label + i), weight,
                                          load(guided + i) * sampling.guidance));
                for (int i = 0; restricted && i < VALUES; i += LANES)
                    store(guided + i, select((VecInt)(load(candidates + i) > 0.0f), load(guided + i),
                                             broadcast(LOG_ZERO)));
            }
            int value;
            if (greedy) {
                value = argmax(guided, VALUES);
            } else {
                softmax_weights(guided, VALUES, 1.0f, guided);
                if (sampling.top_p < 1.0f) apply_top_p(guided, VALUES, sampling.top_p);
                value = inverse_cdf(guided, VALUES, sampling.uniforms[first + channel]);
            }
            values[channel] = static_cast<uint8_t>(value);
        }
    }

    static float decide_categorical(const float* logits, const Sampling& sampling, uint8_t* value) {
        if (!sampling.known) {
            alignas(64) float weights[VALUES];
            softmax_weights(logits, VALUES, sampling.temperature, weights);
            *value = static_cast<uint8_t>(inverse_cdf(weights, VALUES, sampling.uniforms[0]));
        }
        return (log_sum_exp(logits, VALUES) - logits[*value]) / LN2;
    }

    float decide_mixture(const float* parameters, const Sampling& sampling, uint8_t* values) const {
        Mixture mixture;
        parse_mixture(parameters, channels_, mixture);
        if (!sampling.known) sample(mixture, sampling, values);
        const float normaliser = log_sum_exp(mixture.weights, PADDED_MIXTURES);
        for (int m = 0; m < PADDED_MIXTURES; m += LANES)
            store(mixture.weights + m, load(mixture.weights + m) - normaliser);
        alignas(64) float means[PADDED_MIXTURES], total[PADDED_MIXTURES];
        std::memcpy(total, mixture.weights, sizeof total);
        float scaled[MAX_CHANNELS];
        for (int channel = 0; channel < channels_; ++channel) {
            scaled[channel] = to_unit(values[channel]);
            channel_means(mixture, channel, scaled, means);
            add_log_probs(scaled[channel], means, mixture.log_scales[channel], total);
        }
        return log_sum_exp(total, PADDED_MIXTURES) / -LN2;
    }

    void sample(const Mixture& mixture, const Sampling& sampling, uint8_t* values) const {
        alignas(64) float weights[PADDED_MIXTURES], means[PADDED_MIXTURES];
        softmax_weights(mixture.weights, PADDED_MIXTURES, sampling.temperature, weights);
        const int component = inverse_cdf(weights, MIXTURES, sampling.uniforms[0]);
        float scaled[MAX_CHANNELS];
        for (int channel = 0; channel < channels_; ++channel) {
            channel_means(mixture, channel, scaled, means);
            const float u = sampling.uniforms[1 + channel];
            const float scale = exp(mixture.log_scales[channel][component]);
            const float drawn =  // 1 - u is exact, see `uniforms`
                means[component] + sampling.temperature * scale * (log(u) - log(1.0f - u));
            // Rounding half up gives exactly the bins of the likelihood, including the edges. The
            // comparisons turn NaN into 0, because converting it to an integer is undefined.
            const float value = std::floor((drawn + 1.0f) * 127.5f + 0.5f);
            values[channel] = static_cast<uint8_t>(value > 0.0f ? (value < 255.0f ? value : 255.0f)
                                                                : 0.0f);
            scaled[channel] = to_unit(values[channel]);
        }
    }

    const bool categorical_;
    const int channels_;
};

}  // namespace scanline
