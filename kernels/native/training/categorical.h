// The nats of values under 256 logits, and their gradient.
#pragma once

#include "../distribution.h"
#include "load_store.h"

namespace scanline {

// The largest logit, and the sum of e^(logit - largest): no number where a logit is none.
struct LogSumExp {
    float best, total;

    static LogSumExp of(const float* logits) {
        Vec top = load_row(logits), sums = {}, lost = {};
        for (int i = LANES; i < VALUES; i += LANES) top = max(top, load_row(logits + i));
        const float best = largest(top);
        for (int i = 0; i < VALUES; i += LANES) {
            const Vec x = load_row(logits + i);
            sums = sums + exp(x - best);
            lost = lost + select((VecInt)(x == x), Vec{}, x);  // which `max` and `exp` do not mind
        }
        return {best, sum(sums) + sum(lost)};
    }
};

// -ln softmax(logits)[value]
inline float categorical_nll(const float* logits, uint8_t value, const LogSumExp& sums) {
    return std::log(sums.total) - (logits[value] - sums.best);
}

// softmax(logits), less 1 at the value; times `grad`.
inline void categorical_slopes(const float* logits, uint8_t value, const LogSumExp& sums, float grad,
                               float* gradient) {
    const Vec scale = broadcast(grad / sums.total);
    for (int i = 0; i < VALUES; i += LANES)
        store_row(gradient + i, exp(load_row(logits + i) - sums.best) * scale);
    gradient[value] -= grad;
}

}  // namespace scanline
