// The short convolution over rows of an image, and its gradient. Must agree with kernels/short_conv.py.
//
// Each call needs only a row and the one above it, so both can be the output of another pass that is
// still in the cache. The last row of an incomplete image may be shorter than the others.
#pragma once

#include <algorithm>

#include "load_store.h"

namespace scanline {

constexpr int TAPS = 5;    // itself, left, above left, above, above right
constexpr int CHAINS = 4;  // of independent additions, which hide their latency

// `count` positions of an image row with `D` features each. Empty if there is no such row.
template <typename T>
struct ImageRow {
    const T* first = nullptr;
    int64_t count = 0;

    const T* at(int64_t column, int64_t D) const {
        return column >= 0 && column < count ? first + column * D : nullptr;
    }
};

// y[c] = Σ_i weight[i] tap_i for each position of `here`, where `row` is the row above. With DIRECTION
// -1 `row` is the row below and all offsets are mirrored, which gives the gradient of the inputs.
template <int DIRECTION, typename From, typename To>
inline void convolve_row(const ImageRow<From>& here, const ImageRow<From>& row, int64_t D,
                         const float* weight, To* y) {
    for (int64_t c = 0; c < here.count; ++c) {
        const From* const taps[TAPS] = {here.at(c, D), here.at(c - DIRECTION, D),
                                        row.at(c - DIRECTION, D), row.at(c, D),
                                        row.at(c + DIRECTION, D)};
        To* const out = y + c * D;
        const bool all = taps[1] && taps[2] && taps[3] && taps[4];  // not at an edge of the image
        for (int64_t d = 0; d < D; d += LANES) {
            Vec total = load_row(taps[0] + d) * load_row(weight + d);
            for (int i = 1; i < TAPS; ++i)
                if (all || taps[i])
                    total = fma(load_row(taps[i] + d), load_row(weight + i * D + d), total);
            store_row(out + d, total);
        }
    }
}

// grad_weight[i] += Σ_c grad[c] tap_i[c]: `grad_weight: [5, D]`.
template <typename T>
inline void add_weight_gradient(const ImageRow<T>& grad, const ImageRow<float>& here,
                                const ImageRow<float>& above, int64_t D, float* grad_weight) {
    constexpr int64_t shifts[TAPS] = {0, -1, -1, 0, 1};
    for (int i = 0; i < TAPS; ++i) {
        const ImageRow<float>& row = i < 2 ? here : above;
        const int64_t first = std::max(int64_t{0}, -shifts[i]);
        const int64_t last = std::min(grad.count, row.count - shifts[i]);
        if (first >= last) continue;
        const T* const g = grad.first + first * D;
        const float* const from = row.first + (first + shifts[i]) * D;
        for (int64_t d = 0; d < D; d += LANES) {
            Vec totals[CHAINS] = {};
            int64_t n = 0;
            for (; n + CHAINS <= last - first; n += CHAINS)
                for (int c = 0; c < CHAINS; ++c)
                    totals[c] = fma(load_row(g + (n + c) * D + d), load_row(from + (n + c) * D + d),
                                    totals[c]);
            for (; n < last - first; ++n)
                totals[0] = fma(load_row(g + n * D + d), load_row(from + n * D + d), totals[0]);
            const Vec whole = (totals[0] + totals[1]) + (totals[2] + totals[3]);
            store_row(grad_weight + i * D + d, load_row(grad_weight + i * D + d) + whole);
        }
    }
}

}  // namespace scanline
