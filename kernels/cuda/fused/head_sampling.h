// From a step's parameters to values and their cost, by the 32 lanes of a warp: `sampling.py` in C++,
// which says what is what. A lane has one component of a mixture.

constexpr int MIXTURES = 10;

DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + logf(1.0f + expf(-fabsf(x))); }

// ln P of the bin around `value`, 2/255 wide; the outermost reach to infinity (distribution.py).
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

// A level's place in [-1, 1].
DEVICE float scaled(int value) { return (float)value / 127.5f - 1.0f; }

// Mean and log-scale of component `m` of channel `c`, once earlier values are known.
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

// ln P of a channel's values given the earlier channels'.
DEVICE Levels mixture_log_probs(
    const float* p, int c, float first, float second, float heat, int lane
) {
    Levels top, sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) top.of[i] = MINUS_INFINITY, sum.of[i] = 0.0f;
    const float logit = lane < MIXTURES ? p[lane] : MINUS_INFINITY;
    const float cold = (logit - largest_of(logit)) / heat, warmer = logf(heat);
    const float weights = fmaxf(cold - logf(sum_of(expf(cold))), LEAST);
#pragma unroll 1
    for (int m = 0; m < MIXTURES; m++) {
        float weight = float_of(shuffle(bits_of(weights), m));
        for (int earlier = 0; earlier < c; earlier++) {  // given the values before (Bayes)
            weight += logistic_log_prob(
                earlier == 0 ? first : second, mean_of(p, m, earlier, first, second),
                fmaxf(log_scale_of(p, m, earlier) + warmer, MIN_WARM_LOG_SCALE)
            );
        }
        const float mean = mean_of(p, m, c, first, second);
        const float log_scale = fmaxf(log_scale_of(p, m, c) + warmer, MIN_WARM_LOG_SCALE);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float log = weight + logistic_log_prob(scaled(lane * EACH + i), mean, log_scale);
            const float more = fmaxf(top.of[i], log);
            sum.of[i] = sum.of[i] * expf(top.of[i] - more) + expf(log - more);
            top.of[i] = more;
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) top.of[i] += logf(sum.of[i]);
    top.cool(1.0f);
    return top;
}

// A channel's logits, given the earlier channels' values.
DEVICE Levels logits(const float* p, const float* tables, const int* values, int c, int lane) {
    Levels found;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int level = lane * EACH + i, pair = c * (c - 1) / 2;
        float logit = p[c * LEVELS + level];
        if (c > 0) logit += tables[(pair * LEVELS + values[0]) * LEVELS + level];
        if (c > 1) logit += tables[((pair + 1) * LEVELS + values[1]) * LEVELS + level];
        found.of[i] = logit;
    }
    return found;
}

// Draw the values of a step, tempered, guided by the row behind, and cut to the likeliest. `p` are
// the parameters of both rows, `stride` apart.
APART void shape(
    int (&values)[CHANNELS], const float* p, int stride, const float* tables, const Row& row, int lane
) {
    const float heat = row.temperature == 0.0f ? 1.0f : row.temperature;
    const bool guided = row.twin >= 0;
#pragma unroll 1
    for (int c = 0; c < CHANNELS; c++) {
        const float first = scaled(values[0]), second = scaled(values[CHANNELS > 1 ? 1 : 0]);
        Levels log;
#pragma unroll 1
        for (int twin = 0; twin <= guided; twin++) {
            Levels mine;
            if (CATEGORICAL) {
                mine = logits(p + twin * stride, tables, values, c, lane);
                mine.cool(heat);
            } else {
                mine = mixture_log_probs(p + twin * stride, c, first, second, heat, lane);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                log.of[i] = twin ? log.of[i] + (1.0f - row.guidance) * mine.of[i]
                    : row.guidance * mine.of[i];
            }
            if (!twin && guided && row.guidance > 1.0f && row.top_p < 1.0f) {
                log.only_likely(mine, row.top_p, lane);
            }
        }
        values[c] = log.draw(row.temperature, row.top_p, row.uniform[DRAWS - CHANNELS + c], lane);
    }
}

// Draw the values of a step, tempered alone.
DEVICE void draw(
    int (&values)[CHANNELS], const float* p, const float* tables, const Row& row, int lane
) {
    const float* us = row.uniform + DRAWS - CHANNELS;
    if (CATEGORICAL) {
#pragma unroll 1
        for (int c = 0; c < CHANNELS; c++) {
            Levels weight = logits(p, tables, values, c, lane);
            const float top = weight.largest();
#pragma unroll
            for (int i = 0; i < EACH; i++) weight.of[i] = expf((weight.of[i] - top) / row.temperature);
            values[c] = weight.inverse_cdf(us[c], lane);
        }
        return;
    }
    const bool is_one = lane < MIXTURES;
    const float logit = is_one ? p[lane] : MINUS_INFINITY;
    const float upto = running_sum(expf((logit - largest_of(logit)) / row.temperature), lane);
    const float bound = row.uniform[0] * float_of(shuffle(bits_of(upto), MIXTURES - 1));
    const int below = (int)sum_of(is_one && upto <= bound ? 1.0f : 0.0f);
    const int m = below < MIXTURES ? below : MIXTURES - 1;
    float seen[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const float scale = expf(log_scale_of(p, m, c));
        float drawn = mean_of(p, m, c, seen[0], seen[1])
            + row.temperature * scale * (logf(us[c]) - logf(1.0f - us[c]));
        // Rounding half up gives exactly the bins of the likelihood, edges included.
        drawn = floorf((drawn + 1.0f) * 127.5f + 0.5f);
        drawn = drawn > 0.0f ? drawn : 0.0f;  // what is no number becomes 0 too
        values[c] = (int)fminf(drawn, LEVELS - 1.0f);
        if (c < 2) seen[c] = scaled(values[c]);
    }
}

// What the values of a step cost, in nats.
DEVICE float cost(const int (&values)[CHANNELS], const float* p, const float* tables, int lane) {
    if (CATEGORICAL) {
        float nats = 0.0f;
#pragma unroll 1
        for (int c = 0; c < CHANNELS; c++) {
            Levels away = logits(p, tables, values, c, lane), weight;
            const float top = away.largest();
#pragma unroll
            for (int i = 0; i < EACH; i++) away.of[i] -= top, weight.of[i] = expf(away.of[i]);
            nats += logf(weight.total()) - away.at(values[c]);
        }
        return nats;
    }
    const bool is_one = lane < MIXTURES;
    const int m = is_one ? lane : 0;
    const float logit = is_one ? p[lane] : MINUS_INFINITY, away = logit - largest_of(logit);
    float total = away - logf(sum_of(expf(away)));  // ln P of the component and all values so far
    const float first = scaled(values[0]), second = scaled(values[CHANNELS > 1 ? 1 : 0]);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        total += logistic_log_prob(
            scaled(values[c]), mean_of(p, m, c, first, second), log_scale_of(p, m, c)
        );
    }
    if (!is_one) total = MINUS_INFINITY;
    const float top = largest_of(total);
    return -(top + logf(sum_of(expf(total - top))));
}
