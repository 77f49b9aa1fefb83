// A distribution over the 256 values of a channel, 8 neighbouring values to each lane of a warp.
// `distribution.py` and `sampling.py` say what is what.

constexpr int LEVELS = 256, EACH = LEVELS / 32;
#define MINUS_INFINITY float_of(0xff800000u)

// The sums of what all lanes have, of several at a time.
template <int COUNT>
DEVICE void add_lanes(float (&x)[COUNT], int mask = 16) {
#pragma unroll
    for (; mask; mask /= 2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] += shuffle_xor(x[i], mask);
    }
}

DEVICE float sum_of(float x) {
    float one[1] = {x};
    add_lanes(one);
    return one[0];
}

DEVICE float largest_of(float x) {
#pragma unroll
    for (int mask = 16; mask; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// The sum of what the lanes up to this one have.
DEVICE float running_sum(float x, int lane) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const float before = float_of(shuffle(bits_of(x), lane >= by ? lane - by : lane));
        if (lane >= by) x += before;
    }
    return x;
}

// A distribution over the values of a channel: ln P, or weights.
struct Levels {
    float of[EACH];

    DEVICE float total() const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += of[i];
        return sum_of(sum);
    }

    DEVICE float largest() const {
        float most = of[0];
#pragma unroll
        for (int i = 1; i < EACH; i++) most = fmaxf(most, of[i]);
        return largest_of(most);
    }

    DEVICE float at(int value) const {
        float mine = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) mine = i == value % EACH ? of[i] : mine;
        return float_of(shuffle(bits_of(mine), value / EACH));
    }

    // The first value whose cumulated weight exceeds u times all, whatever the numbers are.
    DEVICE int inverse_cdf(float u, int lane) const {
        float sums[EACH], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) sums[i] = sum += of[i];
        const float upto = running_sum(sum, lane), before = upto - sum;
        const float bound = u * float_of(shuffle(bits_of(upto), 31));
        float count = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) count += before + sums[i] <= bound;
        const int value = (int)sum_of(count);
        return value < LEVELS ? value : LEVELS - 1;
    }

    // ln P at a temperature, none less than LEAST; the largest is 0 before it is divided.
    DEVICE void cool(float heat) {
        const float top = largest();
        Levels weight;
#pragma unroll
        for (int i = 0; i < EACH; i++) of[i] = (of[i] - top) / heat, weight.of[i] = expf(of[i]);
        const float all = logf(weight.total());
#pragma unroll
        for (int i = 0; i < EACH; i++) of[i] = fmaxf(of[i] - all, LEAST);
    }

    DEVICE void to_weights() {
        const float top = largest();
#pragma unroll
        for (int i = 0; i < EACH; i++) of[i] = expf(of[i] - top);
    }

    // Zero all but the likeliest values that hold `top_p` of the weight, the largest being 1.
    DEVICE void apply_top_p(float top_p, int lane) {
        const float share = top_p * total();
        u32 low = 0, high = 0x3F800000;  // bits of 0 and 1, whose order is the numbers' own
#pragma unroll 1
        for (int i = 0; i < 30; i++) {
            const u32 middle = (low + high) / 2;
            float above = 0.0f;
#pragma unroll
            for (int j = 0; j < EACH; j++) above += bits_of(of[j]) > middle ? of[j] : 0.0f;
            if (sum_of(above) < share) high = middle;
            else low = middle + 1;
        }
        float above = 0.0f, equals[EACH], equal = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            above += bits_of(of[i]) > high ? of[i] : 0.0f;
            equals[i] = equal += bits_of(of[i]) == high;
        }
        above = sum_of(above);
        const float before = running_sum(equal, lane) - equal;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool stays = bits_of(of[i]) > high
                || (bits_of(of[i]) == high && above + of[i] * (before + equals[i] - 1.0f) < share);
            if (!stays) of[i] = 0.0f;
        }
    }

    // Leave of ln P what is likely with the label, less a quarter of what `top_p` leaves out.
    DEVICE void only_likely(const Levels& labelled, float top_p, int lane) {
        Levels weight = labelled;
        weight.to_weights();
        weight.apply_top_p(1.0f - 0.25f * (1.0f - top_p), lane);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!(weight.of[i] > 0.0f)) of[i] = MINUS_INFINITY;
        }
    }

    // Draw from ln P, of the likeliest values alone, or give the likeliest.
    DEVICE int draw(float temperature, float top_p, float u, int lane) {
        if (temperature == 0.0f) {
            const float top = largest();
            float first = LEVELS - 1;
#pragma unroll
            for (int i = EACH - 1; i >= 0; i--) first = of[i] == top ? lane * EACH + i : first;
            return (int)-largest_of(-first);
        }
        to_weights();
        if (top_p < 1.0f) apply_top_p(top_p, lane);
        return inverse_cdf(u, lane);
    }
};
