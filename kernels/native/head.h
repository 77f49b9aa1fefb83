// From the head's parameters to values: exact bits, and sampling by inverse CDF. The definition is
// model/heads.py's.
#pragma once

#include "distribution.h"

namespace scanline {

// How one step's values are drawn.
struct Draw {
    float uniforms[MAX_CHANNELS + 1];  // none where known
    float temperature, top_p, guidance;
    bool known;
};

class Head {
public:
    // `tables`: [pairs, 256, 256] for categorical heads of several channels.
    Head(bool categorical, int channels, const float* tables)
        : categorical_(categorical), channels_(channels), tables_(0) {
        const int pairs = channels * (channels - 1) / 2;
        if (!categorical || pairs == 0) return;
        const size_t count = static_cast<size_t>(pairs) * VALUES * VALUES;
        tables_ = Buffer<float>(count);
        std::memcpy(tables_.get(), tables, count * sizeof(float));
    }

    // Read `values` where they are known, else draw and write them; give their bits. `unconditional` are
    // the parameters of the image's twin, null where it has none.
    float decide(const float* parameters, const float* unconditional, Draw draw,
                 uint8_t* values) const {
        if (!draw.known && (unconditional || draw.top_p < 1.0f || draw.temperature == 0.0f)) {
            shape(parameters, unconditional, draw, values);
            draw.known = true;
        }
        return categorical_ ? categorical(parameters, draw, values)
                            : mixture(parameters, draw, values);
    }

private:
    // ln P of a channel's values, given the earlier channels'. Where `wanted` is above 0 it is right
    // however unlikely a value is; null: nowhere.
    void log_probs(const float* parameters, int channel, const uint8_t* values, float heat,
                   const float* wanted, float* result) const {
        if (categorical_) {
            logits(parameters, channel, values, result);
            // The largest is 0 before it is divided, or the coldest would be infinite.
            float best = result[0];
            for (int i = 1; i < VALUES; ++i) best = std::max(best, result[i]);
            for (int i = 0; i < VALUES; i += LANES)
                store(result + i, (load(result + i) - best) / heat);
        } else {
            Mixture mixture;
            split(parameters, channels_, mixture);
            alignas(64) float weights[MIX], means[MIX];
            const float warmer = std::log(heat);
            const float best = *std::max_element(mixture.weights, mixture.weights + MIX);
            for (int m = 0; m < MIX; m += LANES)
                store(weights + m, max((load(mixture.weights + m) - best) / heat,
                                       broadcast(MIN_LOG_PROB)));
            for (int c = 0; c <= channel; ++c)
                for (int m = 0; m < MIX; m += LANES) {
                    float* const scales = mixture.log_scales[c] + m;
                    store(scales, max(load(scales) + warmer, broadcast(MIN_WARM_LOG_SCALE)));
                }
            float scaled[MAX_CHANNELS];
            for (int c = 0; c < channel; ++c) {  // the weights given the values before (Bayes)
                scaled[c] = to_unit(values[c]);
                channel_means(mixture, c, scaled, means);
                add_log_probs(scaled[c], means, mixture.log_scales[c], weights);
            }
            std::fill(weights + MIXTURES, weights + MIX, NOTHING);
            channel_means(mixture, channel, scaled, means);
            alignas(64) float shares[MIX], each[MIX];
            const float most = *std::max_element(weights, weights + MIXTURES);
            for (int m = 0; m < MIX; m += LANES) store(weights + m, load(weights + m) - most);
            softmax_weights(weights, MIX, 1.0f, shares);
            value_probabilities(shares, means, mixture.log_scales[channel], result);
            for (int i = 0; i < VALUES; i += LANES)
                store(result + i, log(max(load(result + i), broadcast(1e-30f))));
            for (int i = 0; wanted && i < VALUES; ++i) {
                if (wanted[i] <= 0.0f || result[i] > UNLIKELY) continue;
                std::memcpy(each, weights, sizeof each);
                add_log_probs(to_unit(i), means, mixture.log_scales[channel], each);
                result[i] = log_sum_exp(each, MIX);
            }
        }
        const float normaliser = log_sum_exp(result, VALUES);
        for (int i = 0; i < VALUES; i += LANES)
            store(result + i, max(load(result + i) - normaliser, broadcast(MIN_LOG_PROB)));
    }

    // Draw from the 256 values of each channel in turn: tempered, guided, cut to the likeliest;
    // beyond guidance 1 to those likeliest with the label before, too, by a quarter as much. At
    // temperature 0 the likeliest.
    void shape(const float* parameters, const float* unconditional, const Draw& draw,
               uint8_t* values) const {
        alignas(64) float shaped[VALUES], without[VALUES], likely[VALUES];
        const bool cut = unconditional && draw.guidance > 1.0f && draw.top_p < 1.0f;
        const bool greedy = draw.temperature == 0.0f;
        const float heat = greedy ? 1.0f : draw.temperature;
        const int first = categorical_ ? 0 : 1;  // a mixture's component is not drawn
        for (int channel = 0; channel < channels_; ++channel) {
            std::fill_n(likely, VALUES, 1.0f);
            // Guidance weighs p(x|label) against p(x): both have to be right where both are tiny.
            log_probs(parameters, channel, values, heat, unconditional && !cut ? likely : nullptr,
                      shaped);
            if (unconditional) {
                if (cut) {
                    softmax_weights(shaped, VALUES, 1.0f, likely);
                    apply_top_p(likely, VALUES, 1.0f - 0.25f * (1.0f - draw.top_p));
                }
                log_probs(unconditional, channel, values, heat, likely, without);
                const Vec away = broadcast(1.0f - draw.guidance);
                for (int i = 0; i < VALUES; i += LANES)
                    store(shaped + i, fma(load(without + i), away,
                                          load(shaped + i) * draw.guidance));
                for (int i = 0; cut && i < VALUES; i += LANES)
                    store(shaped + i, select((VecInt)(load(likely + i) > 0.0f), load(shaped + i),
                                             broadcast(NOTHING)));
            }
            int value;
            if (greedy) {
                value = first_largest(shaped, VALUES);
            } else {
                softmax_weights(shaped, VALUES, 1.0f, shaped);
                if (draw.top_p < 1.0f) apply_top_p(shaped, VALUES, draw.top_p);
                value = inverse_cdf(shaped, VALUES, draw.uniforms[first + channel]);
            }
            values[channel] = static_cast<uint8_t>(value);
        }
    }

    void logits(const float* parameters, int channel, const uint8_t* values, float* result) const {
        std::memcpy(result, parameters + channel * VALUES, VALUES * sizeof(float));
        for (int other = 0; other < channel; ++other) {
            const int pair = channel * (channel - 1) / 2 + other;
            const float* row = tables_.get() + (pair * VALUES + values[other]) * VALUES;
            for (int i = 0; i < VALUES; i += LANES)
                store(result + i, load(result + i) + load(row + i));
        }
    }

    float categorical(const float* parameters, const Draw& draw, uint8_t* values) const {
        alignas(64) float logits[VALUES], weights[VALUES];
        float nats = 0.0f;
        for (int channel = 0; channel < channels_; ++channel) {
            this->logits(parameters, channel, values, logits);
            if (!draw.known) {
                softmax_weights(logits, VALUES, draw.temperature, weights);
                const int value = inverse_cdf(weights, VALUES, draw.uniforms[channel]);
                values[channel] = static_cast<uint8_t>(value);
            }
            nats += log_sum_exp(logits, VALUES) - logits[values[channel]];
        }
        return nats / LN2;
    }

    float mixture(const float* parameters, const Draw& draw, uint8_t* values) const {
        Mixture mixture;
        split(parameters, channels_, mixture);
        if (!draw.known) sample(mixture, draw, values);
        const float normaliser = log_sum_exp(mixture.weights, MIX);
        for (int m = 0; m < MIX; m += LANES)
            store(mixture.weights + m, load(mixture.weights + m) - normaliser);
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

    bool categorical_ = false;
    int channels_ = 1;
    Buffer<float> tables_;
};

}  // namespace scanline
