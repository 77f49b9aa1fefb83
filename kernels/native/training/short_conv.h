// The short convolution over whole images and its gradient, a row of the image at a time. The
// definition is kernels/short_conv.py's.
#pragma once

#include "elements.h"

namespace scanline {

struct ConvSizes {
    int64_t images, rows, columns, features, stride;
};

constexpr int TAPS = 5;
constexpr int CHAINS = 4;  // of additions at once, to hide the latency of one

class ConvPass {
public:
    ConvPass(const ConvSizes& sizes, int64_t image)
        : sizes_(sizes), first_(image * sizes.rows * sizes.columns * sizes.features) {}

    // `x, y: [B, R, C, D]`, `weight: [5, D]`.
    void forward(const float* x, const float* weight, float* y) const {
        gather<1>(x, weight, y);
    }

    // The gradient of x is the same convolution, from the places after.
    void backward(const float* grad, const float* x, const float* weight, float* grad_x,
                  float* grad_weight) const {
        gather<-1>(grad, weight, grad_x);
        weigh(grad, x, grad_weight);
    }

private:
    int64_t at(int64_t row, int64_t column) const {
        return first_ + (row * sizes_.columns + column) * sizes_.features;
    }
    bool inside(int64_t row, int64_t column) const {
        return row >= 0 && row < sizes_.rows && column >= 0 && column < sizes_.columns;
    }
    // A tap's place beside (row, column): itself, left, above left, above, above right.
    const float* tap(const float* x, int number, int64_t direction, int64_t row,
                     int64_t column) const {
        static constexpr int64_t UP[TAPS] = {0, 0, 1, 1, 1}, LEFT[TAPS] = {0, 1, 1, 0, -1};
        row -= direction * UP[number];
        column -= direction * LEFT[number] * sizes_.stride;
        return inside(row, column) ? x + at(row, column) : nullptr;
    }

    template <int DIRECTION>
    void gather(const float* x, const float* weight, float* y) const {
        const int64_t D = sizes_.features;
        for (int64_t row = 0; row < sizes_.rows; ++row)
            for (int64_t column = 0; column < sizes_.columns; ++column) {
                const float* taps[TAPS];
                for (int i = 0; i < TAPS; ++i) taps[i] = tap(x, i, DIRECTION, row, column);
                float* const out = y + at(row, column);
                if (taps[2] && taps[4]) {  // not at an edge
                    for (int64_t d = 0; d < D; d += LANES) {
                        Vec total = load_row(taps[0] + d) * load_row(weight + d);
                        for (int i = 1; i < TAPS; ++i)
                            total = fma(load_row(taps[i] + d), load_row(weight + i * D + d), total);
                        store_row(out + d, total);
                    }
                    continue;
                }
                for (int64_t d = 0; d < D; d += LANES) {
                    Vec total = load_row(taps[0] + d) * load_row(weight + d);
                    for (int i = 1; i < TAPS; ++i)
                        if (taps[i])
                            total = fma(load_row(taps[i] + d), load_row(weight + i * D + d), total);
                    store_row(out + d, total);
                }
            }
    }

    // `grad_weight: [5, D]`, this image's own: Σ grad · tap.
    void weigh(const float* grad, const float* x, float* grad_weight) const {
        const int64_t D = sizes_.features;
        for (int64_t row = 0; row < sizes_.rows; ++row)
            for (int i = 0; i < TAPS; ++i) {
                int64_t first = 0, last = sizes_.columns;
                while (first < last && !tap(x, i, 1, row, first)) ++first;
                while (first < last && !tap(x, i, 1, row, last - 1)) --last;
                if (first == last) continue;
                const float* const from = tap(x, i, 1, row, first);
                const float* const g = grad + at(row, first);
                for (int64_t d = 0; d < D; d += LANES) {
                    Vec totals[CHAINS] = {};
                    int64_t n = 0;
                    for (; n + CHAINS <= last - first; n += CHAINS)
                        for (int c = 0; c < CHAINS; ++c)
                            totals[c] = fma(load_row(g + (n + c) * D + d),
                                            load_row(from + (n + c) * D + d), totals[c]);
                    for (; n < last - first; ++n)
                        totals[0] = fma(load_row(g + n * D + d), load_row(from + n * D + d),
                                        totals[0]);
                    const Vec whole = (totals[0] + totals[1]) + (totals[2] + totals[3]);
                    store_row(grad_weight + i * D + d, load_row(grad_weight + i * D + d) + whole);
                }
            }
    }

    const ConvSizes& sizes_;
    int64_t first_;
};

}  // namespace scanline
