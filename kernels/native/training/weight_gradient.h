// The gradient of a linear map's weight, Σ_n grad[n]ᵀ x[n], in float32.
//
// A library of products transposes both matrices first. Here a block of rows is copied as it lies, so
// that a tile of sums stays in registers while the block goes by; where the CPU multiplies pairs of
// bfloat16, two rows lie side by side.
#pragma once

#include <algorithm>

#include "../formats.h"
#include "state_update.h"

namespace scanline {

template <typename T>
class WeightGradient {
    static constexpr int VECTORS = REGISTERS / 8, WIDTH = VECTORS * LANES;
    // Rows of a block: its inputs for a tile fit the first cache, or nearly.
    static constexpr int ROWS = 1024 / sizeof(T), EACH = sizeof(T) == 2 && BF16_DOT ? 2 : 1;
    static constexpr int LINES = ROWS / EACH;

public:
    static constexpr int OUTPUTS = 6;  // of a tile: so many by so many vectors of inputs

    // Of all `outputs`, the `mine` ones from `first` on.
    WeightGradient(int64_t rows, int64_t outputs, int64_t inputs, int64_t first, int64_t mine,
                   float* scratch)
        : rows_(rows), outputs_(outputs), inputs_(inputs), first_(first), mine_(mine),
          grad_(scratch), x_(scratch + LINES * stride(mine)) {}

    static int64_t scratch(int64_t inputs, int64_t mine) {
        return LINES * (stride(mine) + (inputs + WIDTH - 1) / WIDTH * WIDTH);
    }

    // `grad: [rows, outputs]`, `x: [rows, inputs]`, `weight: [outputs, inputs]`.
    void compute(const T* grad, const T* x, float* weight) {
        for (int64_t row = 0; row < rows_; row += ROWS) {
            const int64_t rows = std::min<int64_t>(ROWS, rows_ - row);
            copy(grad + row * outputs_ + first_, outputs_, mine_, rows, grad_, stride(mine_));
            for (int64_t i = 0; i < inputs_; i += WIDTH)
                copy(x + row * inputs_ + i, inputs_, std::min<int64_t>(WIDTH, inputs_ - i), rows,
                     x_ + i * LINES, WIDTH);
            for (int64_t i = 0; i < inputs_; i += WIDTH)
                for (int64_t o = 0; o < mine_; o += OUTPUTS)
                    add_tile((rows + EACH - 1) / EACH, o, i, weight);
        }
    }

private:
    // An odd number of cache lines, or the lines of a block would fight for the same few places.
    static int64_t stride(int64_t outputs) { return ((outputs + OUTPUTS + 15) / 16 | 1) * 16; }

    static Vec some(const T* from, int64_t count) {
        if (count >= LANES) return load_row(from);
        T few[LANES] = {};
        std::copy_n(from, count, few);
        return load_row(few);
    }

    // Lines of `EACH` rows.
    static void copy(const T* from, int64_t from_stride, int64_t columns, int64_t rows, float* to,
                     int64_t to_stride) {
        for (int64_t r = 0; r < rows; r += EACH, from += EACH * from_stride, to += to_stride)
            for (int64_t c = 0; c < columns; c += LANES) {
                Vec line = some(from + c, columns - c);
                if constexpr (EACH == 2) {
                    const bool last = r + 1 == rows;
                    const Vec next = last ? Vec{} : some(from + from_stride + c, columns - c);
                    line = (Vec)((VecUnsigned)line >> 16 | (VecUnsigned)next);
                }
                store(to + c, line);
            }
    }

    void add_tile(int64_t lines, int64_t output, int64_t input, float* weight) const {
        constexpr Format FORMAT = EACH == 2 ? Format::BF16 : Format::FLOAT32;
        Vec sums[OUTPUTS][VECTORS] = {};
        const float *grad = grad_ + output, *x = x_ + input * LINES;
        for (int64_t line = 0; line < lines; ++line, grad += stride(mine_), x += WIDTH) {
            Vec vectors[VECTORS];
            for (int v = 0; v < VECTORS; ++v) vectors[v] = load(x + v * LANES);
            for (int o = 0; o < OUTPUTS; ++o)
                for (int v = 0; v < VECTORS; ++v)
                    accumulate<FORMAT>(sums[o][v], (VecInt)vectors[v], broadcast(grad[o]));
        }
        alignas(64) float tile[OUTPUTS][WIDTH];  // not straight to where some of it ends: gcc spilt
        for (int o = 0; o < OUTPUTS; ++o)
            for (int v = 0; v < VECTORS; ++v) store(tile[o] + v * LANES, sums[o][v]);
        for (int64_t o = 0; o < std::min<int64_t>(OUTPUTS, mine_ - output); ++o) {
            float* const to = weight + (first_ + output + o) * inputs_ + input;
            const int64_t end = std::min<int64_t>(WIDTH, inputs_ - input);
            for (int64_t i = 0; i < end; ++i) to[i] += tile[o][i];
        }
    }

    const int64_t rows_, outputs_, inputs_, first_, mine_;
    float *const grad_, *const x_;
};

}  // namespace scanline
