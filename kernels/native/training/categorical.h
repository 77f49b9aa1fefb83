// The nats of values under 256 logits, and their gradient.
#pragma once

#include "../distribution.h"
#include "elements.h"

namespace scanline {

// The largest logit, and the sum of e^(logit - largest).
struct LogitSums {
    float best, total;

    explicit LogitSums(const float* logits) {
        Vec top = load_row(logits), sums = {};
        for (int i = LANES; i < VALUES; i += LANES) top = max(top, load_row(logits + i));
        best = largest(top);
        for (int i = 0; i < VALUES; i += LANES) sums = sums + exp(load_row(logits + i) - best);
        total = sum(sums);
    }
};

// -ln softmax(logits)[value]
inline float categorical_nats(const float* logits, uint8_t value) {
    const LogitSums sums(logits);
    return std::log(sums.total) - (logits[value] - sums.best);
}

// softmax(logits), less 1 at the value; times `grad`.
inline void categorical_slopes(const float* logits, uint8_t value, float grad, float* gradient) {
    const LogitSums sums(logits);
    const Vec scale = broadcast(grad / sums.total);
    for (int i = 0; i < VALUES; i += LANES)
        store_row(gradient + i, exp(load_row(logits + i) - sums.best) * scale);
    gradient[value] -= grad;
}

}  // namespace scanline
