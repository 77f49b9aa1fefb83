// Distribution over the 256 values of a channel, 8 consecutive values per lane of a warp. The Triton
// functions of distribution.py, with the same names, explain the computations.

constexpr int LEVELS = 256, VALUES_PER_LANE = LEVELS / 32;
#define MINUS_INFINITY float_of(0xff800000u)

// Replace COUNT numbers of each lane by their sums over all lanes.
template <int COUNT>
DEVICE void warp_sums(float (&x)[COUNT], int mask = 16) {
#pragma unroll
    for (; mask; mask /= 2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] += shuffle_xor(x[i], mask);
    }
}

DEVICE float warp_sum(float x) {
    float one[1] = {x};
    warp_sums(one);
    return one[0];
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int mask = 16; mask; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// Return the sum over the lanes up to this one.
DEVICE float warp_prefix_sum(float x, int lane) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const float before = float_of(shuffle(bits_of(x), lane >= by ? lane - by : lane));
        if (lane >= by) x += before;
    }
    return x;
}

// ln P, or unnormalised weights, of the values of a channel.
struct Distribution {
    float values[VALUES_PER_LANE];

    DEVICE float sum() const {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) total += values[i];
        return warp_sum(total);
    }

    DEVICE float max() const {
        float most = values[0];
#pragma unroll
        for (int i = 1; i < VALUES_PER_LANE; i++) most = fmaxf(most, values[i]);
        return warp_max(most);
    }

    DEVICE float at(int value) const {
        float own = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) own = i == value % VALUES_PER_LANE ? values[i] : own;
        return float_of(shuffle(bits_of(own), value / VALUES_PER_LANE));
    }

    // Return the first value whose cumulative weight exceeds u times the total, at most LEVELS - 1.
    DEVICE int inverse_cdf(float u, int lane) const {
        float sums[VALUES_PER_LANE], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) sums[i] = sum += values[i];
        const float through = warp_prefix_sum(sum, lane), before = through - sum;
        const float bound = u * float_of(shuffle(bits_of(through), 31));
        float count = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) count += before + sums[i] <= bound;
        const int value = (int)warp_sum(count);
        return value < LEVELS ? value : LEVELS - 1;
    }

    // Convert logits to ln P at a temperature, at least MIN_LOG_PROB.
    DEVICE void apply_temperature(float temperature) {
        const float top = max();
        Distribution weight;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            values[i] = (values[i] - top) / temperature, weight.values[i] = expf(values[i]);
        }
        const float all = logf(weight.sum());
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) values[i] = fmaxf(values[i] - all, MIN_LOG_PROB);
    }

    DEVICE void exponentiate() {
        const float top = max();
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) values[i] = expf(values[i] - top);
    }

    // Set all weights to 0 except the largest ones that hold `top_p` of the total. The maximum is 1.
    DEVICE void apply_top_p(float top_p, int lane) {
        const float share = top_p * sum();
        // Bits of 0.0 and 1.0: non-negative floats are ordered like their bits.
        u32 low = 0, high = 0x3F800000;
#pragma unroll 1
        for (int i = 0; i < 30; i++) {
            const u32 mid = (low + high) / 2;
            float above = 0.0f;
#pragma unroll
            for (int j = 0; j < VALUES_PER_LANE; j++) {
                above += bits_of(values[j]) > mid ? values[j] : 0.0f;
            }
            if (warp_sum(above) < share) high = mid;
            else low = mid + 1;
        }
        float above = 0.0f, equals[VALUES_PER_LANE], equal = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            above += bits_of(values[i]) > high ? values[i] : 0.0f;
            equals[i] = equal += bits_of(values[i]) == high;
        }
        above = warp_sum(above);
        const float before = warp_prefix_sum(equal, lane) - equal;
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            const bool keep = bits_of(values[i]) > high || (
                bits_of(values[i]) == high
                && above + values[i] * (before + equals[i] - 1.0f) < share
            );
            if (!keep) values[i] = 0.0f;
        }
    }

    // Set ln P to -inf outside the conditional distribution's top 1 - (1 - top_p) / 4.
    DEVICE void mask_unlikely(const Distribution& conditional, float top_p, int lane) {
        Distribution weight = conditional;
        weight.exponentiate();
        weight.apply_top_p(1.0f - 0.25f * (1.0f - top_p), lane);
#pragma unroll
        for (int i = 0; i < VALUES_PER_LANE; i++) {
            if (!(weight.values[i] > 0.0f)) values[i] = MINUS_INFINITY;
        }
    }

    // Sample from ln P with top-p filtering, or return the most likely value at temperature 0.
    DEVICE int sample(float temperature, float top_p, float u, int lane) {
        if (temperature == 0.0f) {
            const float top = max();
            float first = LEVELS - 1;
#pragma unroll
            for (int i = VALUES_PER_LANE - 1; i >= 0; i--) {
                first = values[i] == top ? lane * VALUES_PER_LANE + i : first;
            }
            return (int)-warp_max(-first);
        }
        exponentiate();
        if (top_p < 1.0f) apply_top_p(top_p, lane);
        return inverse_cdf(u, lane);
    }
};
