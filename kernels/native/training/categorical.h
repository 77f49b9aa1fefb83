// Negative log-likelihood of values under 256 logits, and its gradient.
#pragma once

#include <cmath>

#include "../distribution.h"
#include "load_store.h"

namespace scanline {

// The maximum logit and the sum of e^(logit - maximum), which is NaN if a logit is NaN.
struct LogSumExp {
    float maximum, total;

    static LogSumExp of(const float* logits) {
        Vec largest = load_row(logits), sums = {}, nans = {};
        for (int i = LANES; i < VALUES; i += LANES) largest = max(largest, load_row(logits + i));
        const float maximum = horizontal_max(largest);
        for (int i = 0; i < VALUES; i += LANES) {
            const Vec x = load_row(logits + i);
            sums = sums + exp(x - maximum);
            nans = nans + select((VecInt)(x == x), Vec{}, x);  // NaN, which `max` and `exp` drop
        }
        return {maximum, horizontal_sum(sums) + horizontal_sum(nans)};
    }
};

// -ln softmax(logits)[value]
inline float categorical_nll(const float* logits, uint8_t value, const LogSumExp& sums) {
    return std::log(sums.total) - (logits[value] - sums.maximum);
}

// (softmax(logits) - onehot(value)) · grad
inline void categorical_gradient(const float* logits, uint8_t value, const LogSumExp& sums, float grad,
                                 float* gradient) {
    const Vec scale = broadcast(grad / sums.total);
    for (int i = 0; i < VALUES; i += LANES)
        store_row(gradient + i, exp(load_row(logits + i) - sums.maximum) * scale);
    gradient[value] -= grad;
}

}  // namespace scanline
