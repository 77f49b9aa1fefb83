// Gradient of a linear map's weight, Σ_n grad[n]ᵀ x[n], in float32.
//
// A BLAS library would transpose both matrices first. Here each block of rows is copied as it is, and a
// tile of sums stays in registers while the block is read. If the CPU multiplies bf16 pairs, two rows
// are interleaved.
#pragma once

#include <algorithm>

#include "../formats.h"
#include "state_update.h"

namespace scanline {

template <typename T>
class WeightGradient {
    static constexpr int VECTORS = REGISTERS / 8, WIDTH = VECTORS * LANES;
    // Rows of a block, whose inputs for a tile about fit in the L1 cache, and rows per line.
    static constexpr int ROWS = 1024 / sizeof(T), ROWS_PER_LINE = sizeof(T) == 2 && BF16_DOT ? 2 : 1;
    static constexpr int LINES = ROWS / ROWS_PER_LINE;

public:
    static constexpr int OUTPUTS = 6;  // of a tile, which has VECTORS vectors of inputs

    // Compute `count` of all `outputs`, from `first` on.
    WeightGradient(int64_t rows, int64_t outputs, int64_t inputs, int64_t first, int64_t count,
                   float* scratch)
        : rows_(rows), outputs_(outputs), inputs_(inputs), first_(first), count_(count),
          grad_(scratch), x_(scratch + LINES * stride(count)) {}

    static int64_t scratch(int64_t inputs, int64_t count) {
        return LINES * (stride(count) + (inputs + WIDTH - 1) / WIDTH * WIDTH);
    }

    // Add to `weight: [outputs, inputs]`. `grad: [rows, outputs]`, `x: [rows, inputs]`.
    void compute(const T* grad, const T* x, float* weight) {
        for (int64_t row = 0; row < rows_; row += ROWS) {
            const int64_t rows = std::min<int64_t>(ROWS, rows_ - row);
            copy(grad + row * outputs_ + first_, outputs_, count_, rows, grad_, stride(count_));
            for (int64_t i = 0; i < inputs_; i += WIDTH)
                copy(x + row * inputs_ + i, inputs_, std::min<int64_t>(WIDTH, inputs_ - i), rows,
                     x_ + i * LINES, WIDTH);
            for (int64_t i = 0; i < inputs_; i += WIDTH)
                for (int64_t o = 0; o < count_; o += OUTPUTS)
                    add_tile((rows + ROWS_PER_LINE - 1) / ROWS_PER_LINE, o, i, weight);
        }
    }

private:
    // An odd number of cache lines, so that the lines of a block do not map to the same cache sets.
    static int64_t stride(int64_t outputs) { return ((outputs + OUTPUTS + 15) / 16 | 1) * 16; }

    // Load up to LANES elements, padded with zeros.
    static Vec load_partial(const T* from, int64_t count) {
        if (count >= LANES) return load_row(from);
        T few[LANES] = {};
        std::copy_n(from, count, few);
        return load_row(few);
    }

    // Copy rows into lines of ROWS_PER_LINE rows.
    static void copy(const T* from, int64_t from_stride, int64_t columns, int64_t rows, float* to,
                     int64_t to_stride) {
        for (int64_t r = 0; r < rows;
             r += ROWS_PER_LINE, from += ROWS_PER_LINE * from_stride, to += to_stride)
            for (int64_t c = 0; c < columns; c += LANES) {
                Vec line = load_partial(from + c, columns - c);
                if constexpr (ROWS_PER_LINE == 2) {
                    const bool last = r + 1 == rows;
                    const Vec next = last ? Vec{} : load_partial(from + from_stride + c, columns - c);
                    line = (Vec)((VecUnsigned)line >> 16 | (VecUnsigned)next);
                }
                store(to + c, line);
            }
    }

    void add_tile(int64_t lines, int64_t output, int64_t input, float* weight) const {
        constexpr Format FORMAT = ROWS_PER_LINE == 2 ? Format::BF16 : Format::FLOAT32;
        Vec sums[OUTPUTS][VECTORS] = {};
        const float *grad = grad_ + output, *x = x_ + input * LINES;
        for (int64_t line = 0; line < lines; ++line, grad += stride(count_), x += WIDTH) {
            Vec vectors[VECTORS];
            for (int v = 0; v < VECTORS; ++v) vectors[v] = load(x + v * LANES);
            for (int o = 0; o < OUTPUTS; ++o)
                for (int v = 0; v < VECTORS; ++v)
                    accumulate<FORMAT>(sums[o][v], (VecInt)vectors[v], broadcast(grad[o]));
        }
        // Copy the sums to memory first, because writing partial tiles directly made gcc spill
        // registers.
        alignas(64) float tile[OUTPUTS][WIDTH];
        for (int o = 0; o < OUTPUTS; ++o)
            for (int v = 0; v < VECTORS; ++v) store(tile[o] + v * LANES, sums[o][v]);
        for (int64_t o = 0; o < std::min<int64_t>(OUTPUTS, count_ - output); ++o) {
            float* const to = weight + (first_ + output + o) * inputs_ + input;
            const int64_t end = std::min<int64_t>(WIDTH, inputs_ - input);
            for (int64_t i = 0; i < end; ++i) to[i] += tile[o][i];
        }
    }

    const int64_t rows_, outputs_, inputs_, first_, count_;
    float *const grad_, *const x_;
};

}  // namespace scanline
