// Sampling from the head's parameters, and the bits of values, by one warp. sampling.py has the same
// computations in Triton. Each lane holds one component of a mixture.

constexpr int MIXTURES = 10;

DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + logf(1.0f + expf(-fabsf(x))); }

// Return ln P of the bin of width 2/255 around `value` (see distribution.py).
DEVICE float logistic_log_prob(float value, float mean, float log_scale) {
    const float scale = expf(-log_scale), centred = value - mean;
    const float half = scale * (1.0f / 255.0f), away = fabsf(scale * centred);
    if (value < -0.999f) return -softplus(-scale * (centred + 1.0f / 255.0f));
    if (value > 0.999f) return -softplus(scale * (centred - 1.0f / 255.0f));
    const float near = expf(-away), up = expf(half), down = expf(-half), h2 = half * half;
    float series = 1.0f + h2 * (1.0f / 42.0f) * (1.0f + h2 * (1.0f / 72.0f));
    series = 1.0f + h2 * (1.0f / 6.0f) * (1.0f + h2 * (1.0f / 20.0f) * series);
    const float breadth = half < 1.0f ? 2.0f * series : (up - down) / half;
    const float share = breadth / ((1.0f + near * up) * (1.0f + near * down));
    return logf(share) - away - log_scale - 5.54126355f;  // ln 255
}

// Map 0 ... 255 to [-1, 1].
DEVICE float to_unit(int value) { return (float)value / 127.5f - 1.0f; }

// Mean and log-scale of component `m` of channel `c`, given the earlier channels' values.
DEVICE float mean_of(const float* p, int m, int c, float first, float second) {
    float mean = p[(1 + c) * MIXTURES + m];
    const float* pair = p + (1 + 2 * CHANNELS + c * (c - 1) / 2) * MIXTURES + m;
    if (c > 0) mean += tanhf(pair[0]) * first;
    if (c > 1) mean += tanhf(pair[MIXTURES]) * second;
    return mean;
}

DEVICE float log_scale_of(const float* p, int m, int c) {
    return fmaxf(p[(1 + CHANNELS + c) * MIXTURES + m], MIN_LOG_SCALE);
}

// Return ln P of a channel's values, given the earlier channels' values.
DEVICE Distribution mixture_log_probs(
    const float* p, int c, float first, float second, float temperature, int lane
) {
    Distribution top, sum;
#pragma unroll
    for (int i = 0; i < VALUES_PER_LANE; i++) top.values[i] = MINUS_INFINITY, sum.values[i] = 0.0f;
    const float logit = lane < MIXTURES ? p[lane] : MINUS_INFINITY;
    const float scaled = (logit - warp_max(logit)) / temperature;
    const float log_temperature = logf(temperature);
    const float weights = fmaxf(scaled - logf(warp_sum(expf(scaled))), MIN_LOG_PROB);
#pragma unroll 1
    for (int m = 0; m < MIXTURES; m++) {
        float weight = float_of(shuffle(bits_of(weights), m));
        for (int earlier = 0; earlier < c; earlier++) {  // Bayes: weight given the earlier values
            weight += logistic_log_prob(
                earlier == 0 ? first : second, mean_of(p, m, earlier, first, second),
                fmaxf(log_scale_of(p, m, earlier) + log_temperature, MIN_WARM_LOG_SCALE)
            );
        }
        const float mean = mean_of(p, m, c, first, second);
        const float log_scale = fmaxf(log_scale_of(p, m, c) + log_temperature, MIN_WARM_LOG_SCALE);
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            const float value = to_unit(lane * VALUES_PER_LANE + i);
            const float log = weight + logistic_log_prob(value, mean, log_scale);
            const float new_top = fmaxf(top.values[i], log);
            sum.values[i] = sum.values[i] * expf(top.values[i] - new_top) + expf(log - new_top);
            top.values[i] = new_top;
        }
    }
#pragma unroll
    for (int i = 0; i < VALUES_PER_LANE; i++) top.values[i] += logf(sum.values[i]);
    top.apply_temperature(1.0f);
    return top;
}

// Return the logits of a categorical head.
DEVICE Distribution load_logits(const float* p, int lane) {
    Distribution result;
#pragma unroll
    for (int i = 0; i < VALUES_PER_LANE; i++) result.values[i] = p[lane * VALUES_PER_LANE + i];
    return result;
}

// Sample the values of a step with guidance and top-p. `p` points to the parameters of the row and, with
// guidance, of its twin `stride` further.
NOINLINE void sample_filtered(
    int (&values)[CHANNELS], const float* p, int stride, const RowSample& row, int lane
) {
    const float divisor = row.temperature == 0.0f ? 1.0f : row.temperature;
    const bool guided = row.twin >= 0;
#pragma unroll 1
    for (int c = 0; c < CHANNELS; c++) {
        const float first = to_unit(values[0]), second = to_unit(values[CHANNELS > 1 ? 1 : 0]);
        Distribution log;
#pragma unroll 1
        for (int twin = 0; twin <= guided; twin++) {
            Distribution row_log;
            if (CATEGORICAL) {
                row_log = load_logits(p + twin * stride, lane);
                row_log.apply_temperature(divisor);
            } else {
                row_log = mixture_log_probs(p + twin * stride, c, first, second, divisor, lane);
            }
#pragma unroll
            for (int i = 0; i < VALUES_PER_LANE; i++) {
                log.values[i] = twin ? log.values[i] + (1.0f - row.guidance) * row_log.values[i]
                    : row.guidance * row_log.values[i];
            }
            if (!twin && guided && row.guidance > 1.0f && row.top_p < 1.0f) {
                log.mask_unlikely(row_log, row.top_p, lane);
            }
        }
        values[c] = log.sample(row.temperature, row.top_p, row.uniform[DRAWS - CHANNELS + c], lane);
    }
}

// Sample the values of a step with a temperature only.
DEVICE void sample_plain(
    int (&values)[CHANNELS], const float* p, const RowSample& row, int lane
) {
    if (CATEGORICAL) {
        Distribution weight = load_logits(p, lane);
        const float top = weight.max();
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            weight.values[i] = expf((weight.values[i] - top) / row.temperature);
        }
        values[0] = weight.inverse_cdf(row.uniform[0], lane);
        return;
    }
    const float* us = row.uniform + DRAWS - CHANNELS;
    const bool has_component = lane < MIXTURES;
    const float logit = has_component ? p[lane] : MINUS_INFINITY;
    const float through = warp_prefix_sum(expf((logit - warp_max(logit)) / row.temperature), lane);
    const float bound = row.uniform[0] * float_of(shuffle(bits_of(through), MIXTURES - 1));
    const int below = (int)warp_sum(has_component && through <= bound ? 1.0f : 0.0f);
    const int m = below < MIXTURES ? below : MIXTURES - 1;
    float earlier[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const float scale = expf(log_scale_of(p, m, c));
        float sampled = mean_of(p, m, c, earlier[0], earlier[1])
            + row.temperature * scale * (logf(us[c]) - logf(1.0f - us[c]));
        // Rounding half up gives exactly the bins of the likelihood.
        sampled = floorf((sampled + 1.0f) * 127.5f + 0.5f);
        sampled = sampled > 0.0f ? sampled : 0.0f;  // NaN becomes 0 too
        values[c] = (int)fminf(sampled, LEVELS - 1.0f);
        if (c < 2) earlier[c] = to_unit(values[c]);
    }
}

// Return the negative log-likelihood of the values of a step, in nats.
DEVICE float nats_of(const int (&values)[CHANNELS], const float* p, int lane) {
    if (CATEGORICAL) {
        Distribution centred = load_logits(p, lane), weight;
        const float top = centred.max();
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            centred.values[i] -= top, weight.values[i] = expf(centred.values[i]);
        }
        return logf(weight.sum()) - centred.at(values[0]);
    }
    const bool has_component = lane < MIXTURES;
    const int m = has_component ? lane : 0;
    const float logit = has_component ? p[lane] : MINUS_INFINITY, centred = logit - warp_max(logit);
    // ln P of the component and all values so far.
    float total = centred - logf(warp_sum(expf(centred)));
    const float first = to_unit(values[0]), second = to_unit(values[CHANNELS > 1 ? 1 : 0]);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        total += logistic_log_prob(
            to_unit(values[c]), mean_of(p, m, c, first, second), log_scale_of(p, m, c)
        );
    }
    if (!has_component) total = MINUS_INFINITY;
    const float top = warp_max(total);
    return -(top + logf(warp_sum(expf(total - top))));
}
