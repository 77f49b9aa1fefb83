// Matrices packed once for streaming, and the product of a few rows of activations with them.
//
// Outputs are grouped in panels of PANEL; a panel holds, for each pair of inputs (bf16) or each
// input (float32), the weights of all its outputs side by side. A kernel keeps one accumulator a
// row and output and adds the inputs in their order, so a row's sums are the same whether it is
// computed alone or with others: batch invariance for free.
#pragma once

#include "native_vector.h"

namespace scanline {

#if defined(__AVX512BF16__)
constexpr bool BF16_DOT = true;  // vdpbf16ps multiplies pairs of bf16 and adds both products
#else
constexpr bool BF16_DOT = false;
#endif

#if defined(__AVX512F__)  // 32 registers: 6 × 4 sums, 4 weights, 1 activation
constexpr int PANEL_VECS = 4, MAX_BLOCK = 6;
#else  // 16 registers: 4 × 2 sums, 4 halves of weights, 2 activations
constexpr int PANEL_VECS = 2, MAX_BLOCK = 4;
#endif
constexpr int PANEL = PANEL_VECS * LANES;

struct Range {
    int begin, end;

    // Part `index` of `parts` nearly equal parts of 0 … count.
    static Range share(int count, int index, int parts) {
        const auto at = [&](int i) { return static_cast<int>(int64_t{count} * i / parts); };
        return {at(index), at(index + 1)};
    }
};

// How activations are stored as a product's input: bf16 where the CPU multiplies those, float
// otherwise (rounded to bf16 all the same where the weights are, so that all ISAs agree).
class InputFormat {
public:
    explicit InputFormat(bool bf16) : bf16_(bf16) {}
    size_t bytes(int width) const { return static_cast<size_t>(width) * (bf16_ && BF16_DOT ? 2 : 4); }
    void put(std::byte* row, int column, Vec v) const {
#if defined(__AVX512BF16__)
        if (bf16_) {
            const auto half = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_store_si256(reinterpret_cast<__m256i*>(row + column * 2), half);
            return;
        }
#endif
        store(reinterpret_cast<float*>(row) + column, bf16_ ? round_to_bf16(v) : v);
    }

private:
    bool bf16_;
};

// R rows times one panel: `tile[r][column] = Σ_k input[r][k] · weight[k][column]`.
using Kernel = void (*)(const std::byte* input, size_t stride, const std::byte* panel, int inputs,
                        float* tile);

template <int R>
void multiply_float32(const std::byte* input, size_t stride, const std::byte* panel, int inputs,
                      float* tile) {
    const auto* weights = reinterpret_cast<const float*>(panel);
    Vec sums[R][PANEL_VECS] = {};
    for (int k = 0; k < inputs; ++k, weights += PANEL) {
        for (int r = 0; r < R; ++r) {
            const Vec a = broadcast(reinterpret_cast<const float*>(input + r * stride)[k]);
            for (int c = 0; c < PANEL_VECS; ++c)
                sums[r][c] = fma(load(weights + c * LANES), a, sums[r][c]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < PANEL_VECS; ++c) store(tile + r * PANEL + c * LANES, sums[r][c]);
}

template <int R>
void multiply_bf16(const std::byte* input, size_t stride, const std::byte* panel, int inputs,
                   float* tile) {
    const auto* weights = reinterpret_cast<const int32_t*>(panel);
    Vec sums[R][PANEL_VECS] = {};
    for (int k = 0; k < inputs; k += 2, weights += PANEL) {
#if defined(__AVX512BF16__)
        __m512bh w[PANEL_VECS];
        for (int c = 0; c < PANEL_VECS; ++c)
            w[c] = (__m512bh)_mm512_load_si512(weights + c * LANES);
        for (int r = 0; r < R; ++r) {
            const auto pair = reinterpret_cast<const int32_t*>(input + r * stride)[k / 2];
            const auto a = (__m512bh)_mm512_set1_epi32(pair);
            for (int c = 0; c < PANEL_VECS; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], w[c], a);
        }
#else
        Vec even[PANEL_VECS], odd[PANEL_VECS];
        for (int c = 0; c < PANEL_VECS; ++c) {
            const VecInt pairs = *reinterpret_cast<const VecInt*>(weights + c * LANES);
            even[c] = (Vec)(pairs << 16);
            odd[c] = (Vec)(pairs & static_cast<int32_t>(0xffff0000u));
        }
        for (int r = 0; r < R; ++r) {
            const auto* a = reinterpret_cast<const float*>(input + r * stride) + k;
            const Vec first = broadcast(a[0]), second = broadcast(a[1]);
            for (int c = 0; c < PANEL_VECS; ++c)
                sums[r][c] = fma(odd[c], second, fma(even[c], first, sums[r][c]));
        }
#endif
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < PANEL_VECS; ++c) store(tile + r * PANEL + c * LANES, sums[r][c]);
}

// A linear map with its bias, packed. Inputs and outputs may be spread out on the way in: head by
// head with padding between them, which no weight touches.
class Packed {
public:
    Packed() = default;
    Packed(int outputs, int inputs, bool bf16)
        : bf16_(bf16), inputs_(round_up(inputs, 2)), panels_((outputs + PANEL - 1) / PANEL),
          panel_bytes_(static_cast<size_t>(inputs_) * PANEL * (bf16 ? 2 : 4)),
          weights_(panel_bytes_ * static_cast<size_t>(panels_)),
          bias_(static_cast<size_t>(panels_) * PANEL) {}

    void set(int output, int input, float weight) {
        std::byte* panel = weights_.get() + static_cast<size_t>(output / PANEL) * panel_bytes_;
        const size_t column = static_cast<size_t>(output % PANEL);
        const size_t k = static_cast<size_t>(input);
        if (bf16_)
            reinterpret_cast<uint16_t*>(panel)[k / 2 * PANEL * 2 + column * 2 + k % 2] =
                to_bf16(weight);
        else
            reinterpret_cast<float*>(panel)[k * PANEL + column] = weight;
    }
    void set_bias(int output, float bias) { bias_.get()[output] = bias; }

    // Fill from torch's [outputs, inputs] matrix.
    void fill(const float* weight, const float* bias, int outputs, int inputs) {
        for (int o = 0; o < outputs; ++o) {
            for (int i = 0; i < inputs; ++i) set(o, i, weight[static_cast<size_t>(o) * inputs + i]);
            set_bias(o, bias[o]);
        }
    }

    int panels() const { return panels_; }
    size_t bytes() const { return panel_bytes_ * static_cast<size_t>(panels_); }

    // Multiply rows with some of the panels, and give each vector of the result, bias added, to
    // `take(row, column, values)`.
    template <typename Take>
    void multiply(const std::byte* input, size_t stride, int rows, Range panels,
                  Take take) const {
        alignas(64) float tile[MAX_BLOCK * PANEL];
        const int blocks = (rows + MAX_BLOCK - 1) / MAX_BLOCK;
        for (int panel = panels.begin; panel < panels.end; ++panel) {
            const std::byte* weights = weights_.get() + static_cast<size_t>(panel) * panel_bytes_;
            for (int block = 0; block < blocks; ++block) {
                const Range some = Range::share(rows, block, blocks);
                kernel(some.end - some.begin)(input + static_cast<size_t>(some.begin) * stride,
                                              stride, weights, inputs_, tile);
                for (int row = some.begin; row < some.end; ++row) {
                    for (int c = 0; c < PANEL_VECS; ++c) {
                        const int column = panel * PANEL + c * LANES;
                        const Vec sums = load(tile + (row - some.begin) * PANEL + c * LANES);
                        take(row, column, sums + load(bias_.get() + column));
                    }
                }
            }
        }
    }

private:
    Kernel kernel(int rows) const {
        static constexpr Kernel float32[] = {
            multiply_float32<1>, multiply_float32<2>, multiply_float32<3>, multiply_float32<4>,
#if defined(__AVX512F__)
            multiply_float32<5>, multiply_float32<6>,
#endif
        };
        static constexpr Kernel bf16[] = {
            multiply_bf16<1>, multiply_bf16<2>, multiply_bf16<3>, multiply_bf16<4>,
#if defined(__AVX512F__)
            multiply_bf16<5>, multiply_bf16<6>,
#endif
        };
        static_assert(sizeof float32 / sizeof(Kernel) == MAX_BLOCK);
        return (bf16_ ? bf16 : float32)[rows - 1];
    }

    bool bf16_ = false;
    int inputs_ = 0, panels_ = 0;
    size_t panel_bytes_ = 0;
    Buffer<std::byte> weights_;
    Buffer<float> bias_;
};

}  // namespace scanline
