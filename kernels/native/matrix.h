// Matrices packed once for streaming, and the product of a few rows of activations with them.
//
// Outputs are grouped in panels of PANEL; a panel holds, for each pair of inputs (bf16) or each
// input (float32), the weights of all its outputs side by side. A kernel keeps one accumulator a
// row and output and adds the inputs in their order, so a row's sums are the same whether it is
// computed alone or with others: batch invariance for free.
#pragma once

#include "vector.h"

namespace scanline {

#if defined(__AVX512BF16__)
constexpr bool BF16_DOT = true;  // vdpbf16ps multiplies pairs of bf16 and adds both products
#else
constexpr bool BF16_DOT = false;
#endif

// Vectors in a panel, and the most rows that a kernel takes: their sums, the panel's weights and an
// activation have to fit the registers, 32 or 16.
#if defined(__aarch64__)
constexpr int PANEL_VECS = 4;  // of NEON's 32 registers of 4 floats
#else
constexpr int PANEL_VECS = 2;
#endif
#if defined(__AVX512F__)
constexpr int BLOCK = 12;
#else
constexpr int BLOCK = 6;
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
    // From one row to the next: an odd number of cache lines, or the rows of a block would fight
    // for the same few places of the first-level cache.
    size_t stride(int width) const {
        const int bytes = width * (bf16_ && BF16_DOT ? 2 : 4);
        return static_cast<size_t>(round_up(bytes, 64) / 64 | 1) * 64;
    }
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

// f(0) … f(N - 1) with constants, all inlined at once: an array so indexed is registers from the
// start. gcc unrolls nested loops too late for that, and keeps their sums in memory.
#define ALWAYS_INLINE __attribute__((always_inline))
template <int N, typename F>
ALWAYS_INLINE inline void each(F f) {
    [&]<int... I>(std::integer_sequence<int, I...>) ALWAYS_INLINE {
        (f(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// sum += weights · a, of bf16 pairs if `PAIRS`.
template <bool PAIRS>
inline void accumulate(Vec& sum, Vec weights, Vec a) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)a);
        return;
    }
#endif
#if defined(__FMA__) && !defined(__AVX512F__)
    // gcc moves the sums of its own fma from register to register, and spills others for it.
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(a));
#else
    sum = fma(weights, a, sum);
#endif
}

// Kernels that compute much on each weight fetch the next panel meanwhile, so that the first block of
// rows to need it does not wait. (Beyond the last panel this asks for memory that is never read.)
template <int R>
inline void fetch_ahead(const std::byte* next) {
    if constexpr (2 * R >= BLOCK)
        for (size_t i = 0; i < PANEL * sizeof(float); i += 64) __builtin_prefetch(next + i, 0, 3);
}

// R rows times P neighbouring panels: `tile[r][column] = Σ_k input[r][k] · weight[k][column]`. Few
// rows take several panels at once, for enough sums in flight to hide the latency of one.
template <bool BF16, int R, int P>
void multiply(const std::byte* input, size_t stride, const std::byte* panel, size_t panel_bytes,
              int inputs, float* tile) {
    constexpr bool PAIRS = BF16 && BF16_DOT;
    constexpr int TOGETHER = BF16 ? 2 : 1;  // inputs in a vector of weights
    constexpr int TURNS = PAIRS ? 1 : TOGETHER;
    Vec sums[R][P][PANEL_VECS];
    const auto each_sum = [&](auto f) ALWAYS_INLINE {
        each<R>([&](auto r) ALWAYS_INLINE {
            each<P>([&](auto p) ALWAYS_INLINE {
                each<PANEL_VECS>([&](auto c) ALWAYS_INLINE { f(r, p, c); });
            });
        });
    };
    each_sum([&](auto r, auto p, auto c) ALWAYS_INLINE { sums[r][p][c] = Vec{}; });
    for (int k = 0; k < inputs; k += TOGETHER, panel += PANEL * sizeof(float)) {
        fetch_ahead<R>(panel + panel_bytes);
        each<P>([&](auto p) ALWAYS_INLINE {
            const auto* w = reinterpret_cast<const VecInt*>(panel + p * panel_bytes);
            // Of a pair one after the other, or the unpacked weights would not fit the registers.
            each<TURNS>([&](auto turn) ALWAYS_INLINE {
                VecInt weights[PANEL_VECS];
                each<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                    if constexpr (TURNS == 1) weights[c] = w[c];
                    else if constexpr (turn == 0) weights[c] = w[c] << 16;
                    else weights[c] = w[c] & static_cast<int32_t>(0xffff0000u);
                });
                each<R>([&](auto r) ALWAYS_INLINE {
                    const auto* row = reinterpret_cast<const float*>(input + r * stride);
                    const Vec a = broadcast(row[PAIRS ? k / 2 : k + turn]);
                    each<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                        accumulate<PAIRS>(sums[r][p][c], (Vec)weights[c], a);
                    });
                });
            });
        });
    }
    each_sum([&](auto r, auto p, auto c) ALWAYS_INLINE {
        store(tile + ((r * P + p) * PANEL_VECS + c) * LANES, sums[r][p][c]);
    });
}

using Kernel = void (*)(const std::byte*, size_t, const std::byte*, size_t, int, float*);

// The kernels for some number of rows: `wide` takes `panels` at once, `narrow` one.
struct Kernels {
    int rows, panels;
    Kernel wide, narrow;
};
template <bool BF16, int R, int P>
constexpr Kernels kernels() {
    return {R, P, multiply<BF16, R, P>, multiply<BF16, R, 1>};
}
template <bool BF16>
constexpr Kernels KERNELS[] = {
#if defined(__AVX512F__)
    kernels<BF16, 1, 4>(), kernels<BF16, 2, 4>(), kernels<BF16, 4, 2>(),  kernels<BF16, 6, 1>(),
    kernels<BF16, 8, 1>(), kernels<BF16, 10, 1>(), kernels<BF16, 12, 1>(),
#else
    kernels<BF16, 1, 4>(), kernels<BF16, 2, 2>(), kernels<BF16, 3, 1>(), kernels<BF16, 4, 1>(),
    kernels<BF16, 5, 1>(), kernels<BF16, 6, 1>(),
#endif
};
constexpr int MOST_PANELS = 4;

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

    InputFormat format() const { return InputFormat(bf16_); }  // of its input
    int panels() const { return panels_; }
    size_t bytes() const { return panel_bytes_ * static_cast<size_t>(panels_); }

    // Multiply rows with some of the panels, and give each vector of the result, bias added, to
    // `take(row, column, values)`. Kernels come for even numbers of rows: the memory of `input` may
    // be read, not used, one row beyond the last.
    template <typename Take>
    void multiply(const std::byte* input, size_t stride, int rows, Range panels, Take take) const {
        alignas(64) float tile[BLOCK * MOST_PANELS * PANEL];
        const int blocks = (rows + BLOCK - 1) / BLOCK;
        for (int panel = panels.begin, done; panel < panels.end; panel += done) {
            const std::byte* weights = weights_.get() + static_cast<size_t>(panel) * panel_bytes_;
            done = 1;
            for (int block = 0; block < blocks; ++block) {
                const Range some = Range::share(rows, block, blocks);
                const Kernels& kernels = choose(some.end - some.begin);
                const bool wide = blocks == 1 && panels.end - panel >= kernels.panels;
                if (wide) done = kernels.panels;
                (wide ? kernels.wide : kernels.narrow)(
                    input + static_cast<size_t>(some.begin) * stride, stride, weights, panel_bytes_,
                    inputs_, tile);
                const float* sums = tile;
                for (int row = some.begin; row < some.end; ++row) {
                    for (int c = 0; c < done * PANEL_VECS; ++c, sums += LANES) {
                        const int column = panel * PANEL + c * LANES;
                        take(row, column, load(sums) + load(bias_.get() + column));
                    }
                }
            }
        }
    }

private:
    const Kernels& choose(int rows) const {
        const Kernels* kernels = bf16_ ? KERNELS<true> : KERNELS<false>;
        while (kernels->rows < rows) ++kernels;
        return *kernels;
    }

    bool bf16_ = false;
    int inputs_ = 0, panels_ = 0;
    size_t panel_bytes_ = 0;
    Buffer<std::byte> weights_;
    Buffer<float> bias_;
};

}  // namespace scanline
