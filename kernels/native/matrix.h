// Matrices packed once for streaming, and the product of a few rows of activations with them.
//
// Outputs are grouped in panels of PANEL; a panel holds, for each input (float32), pair (16 bits) or
// four of them (8 bits), the weights of all its outputs side by side. A kernel keeps one accumulator a
// row and output and adds the inputs in their order, or sums whole numbers exactly, so a row's sums
// are the same whether it is computed alone or with others: batch invariance for free.
#pragma once

#include <limits>

#include "amx_tiles.h"

namespace scanline {

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
static_assert(!TILES || PANEL == TILE_PANEL);

struct Range {
    int begin, end;

    // Part `index` of `parts` nearly equal parts of 0 … count.
    static Range share(int count, int index, int parts) {
        const auto at = [&](int i) { return static_cast<int>(int64_t{count} * i / parts); };
        return {at(index), at(index + 1)};
    }
};

// f(0) … f(N - 1) with constants, all inlined at once: an array so indexed is registers from the
// start. gcc unrolls nested loops too late for that, and keeps their sums in memory.
template <int N, typename F>
ALWAYS_INLINE inline void each(F f) {
    [&]<int... I>(std::integer_sequence<int, I...>) ALWAYS_INLINE {
        (f(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// Kernels that compute much on each weight fetch the next panel meanwhile, so that the first block of
// rows to need it does not wait. (Beyond the last panel this asks for memory that is never read.)
template <int R>
inline void fetch_ahead(const std::byte* next, size_t bytes) {
    if constexpr (2 * R >= BLOCK)
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 3);
}

// R rows times P neighbouring panels (the unnamed number is how many of the rows count, which only
// the kernels of tiles heed): `tile[r][column] =
// Σ_k input[r][k] · weight[k][column]`, of int8 and int16 a whole number. Few rows take several panels
// at once, for enough sums in flight to hide the latency of one.
template <Format F, int R, int P>
void multiply(const std::byte* input, size_t stride, int, const std::byte* panel, size_t panel_bytes,
              int inputs, float* tile) {
    constexpr size_t VEC_BYTES = LANES * INPUTS<F> * weight_bytes(F), BYTES = PANEL_VECS * VEC_BYTES;
    Vec sums[R][P][PANEL_VECS];
    const auto each_sum = [&](auto f) ALWAYS_INLINE {
        each<R>([&](auto r) ALWAYS_INLINE {
            each<P>([&](auto p) ALWAYS_INLINE {
                each<PANEL_VECS>([&](auto c) ALWAYS_INLINE { f(r, p, c); });
            });
        });
    };
    each_sum([&](auto r, auto p, auto c) ALWAYS_INLINE { sums[r][p][c] = Vec{}; });
    for (size_t k = 0; k < static_cast<size_t>(inputs); k += INPUTS<F>, panel += BYTES) {
        fetch_ahead<R>(panel + panel_bytes, BYTES);
        each<P>([&](auto p) ALWAYS_INLINE {
            const std::byte* const w = panel + p * panel_bytes;
            // Of a pair one after the other, or the unpacked weights would not fit the registers.
            each<TURNS<F>>([&](auto turn) ALWAYS_INLINE {
                VecInt weights[PANEL_VECS];
                each<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                    weights[c] = unpack<F>(w + c * VEC_BYTES, turn);
                });
                each<R>([&](auto r) ALWAYS_INLINE {
                    const Vec a = spread<F>(input + r * stride, k, turn);
                    each<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                        accumulate<F>(sums[r][p][c], weights[c], a);
                    });
                });
            });
        });
    }
    each_sum([&](auto r, auto p, auto c) ALWAYS_INLINE {
        store(tile + ((r * P + p) * PANEL_VECS + c) * LANES, sums[r][p][c]);
    });
}

using Kernel = void (*)(const std::byte*, size_t, int, const std::byte*, size_t, int, float*);

// The kernels for some number of rows: `wide` takes `panels` at once, `narrow` one.
struct Kernels {
    int rows, panels;
    Kernel wide, narrow;
};
template <Format F, int R, int P>
constexpr Kernels kernels() {
    return {R, P, multiply<F, R, P>, multiply<F, R, 1>};
}
template <Format F>
constexpr Kernels KERNELS[] = {
#if defined(__AVX512F__)
    kernels<F, 1, 4>(), kernels<F, 2, 4>(), kernels<F, 4, 2>(),  kernels<F, 6, 1>(),
    kernels<F, 8, 1>(), kernels<F, 10, 1>(), kernels<F, 12, 1>(),
#else
    kernels<F, 1, 4>(), kernels<F, 2, 2>(), kernels<F, 3, 1>(), kernels<F, 4, 1>(),
    kernels<F, 5, 1>(), kernels<F, 6, 1>(),
#endif
};
#if defined(__AMX_INT8__)
constexpr Kernels TILE_KERNELS[] = {{TILE_ROWS, 1, multiply_planes, multiply_planes},
                                    {TILE_ROWS, 1, multiply_bytes, multiply_bytes}};
#endif
constexpr int MOST_PANELS = 4;

// A linear map with its bias, packed. Inputs and outputs may be spread out on the way in: head by
// head with padding between them, which no weight touches.
class Packed {
public:
    Packed(int outputs, int inputs, Format format)
        : format_(format), inputs_(round_up(inputs, 4)), panels_((outputs + PANEL - 1) / PANEL),
          panel_bytes_(static_cast<size_t>(round_up(inputs, depth_of(format))) * PANEL *
                       static_cast<size_t>(weight_bytes(format))),
          weights_(panel_bytes_ * static_cast<size_t>(panels_)),
          planes_(TILES && format == Format::INT16 ? bytes() : 0),
          bias_(static_cast<size_t>(panels_) * PANEL), scales_(static_cast<size_t>(panels_) * PANEL),
          added_(static_cast<size_t>(panels_) * PANEL) {}

    // The weights of one output: the i-th of `count` belongs to what lies at `place(i)` of a row.
    template <typename Place>
    void set(int output, const float* weights, int count, float bias, Place place) {
        set_bias(output, bias);
        const float scale = whole(format_) ? scale_of(weights, count) : 1.0f;
        scales_.get()[output] = scale;
        for (int i = 0; i < count; ++i) put(output, static_cast<size_t>(place(i)), weights[i] / scale);
    }
    void set_bias(int output, float bias) { bias_.get()[output] = bias; }

    // Fill from torch's [outputs, inputs] matrix.
    void fill(const float* weight, const float* bias, int outputs, int inputs) {
        for (int o = 0; o < outputs; ++o)
            set(o, weight + static_cast<size_t>(o) * inputs, inputs, bias[o], [](int i) { return i; });
    }

    InputFormat format() const { return InputFormat(format_); }  // of its input
    int panels() const { return panels_; }
    size_t bytes() const { return panel_bytes_ * static_cast<size_t>(panels_); }

    // Rows put down in its format as `multiply` takes them (InputFormat::complete).
    const std::byte* complete(const std::byte* rows, size_t stride, int count, std::byte* mine) const {
        return format().complete(rows, stride, count, inputs_, mine);
    }

    // Multiply completed rows with some of the panels, and give each vector of the result, bias
    // added, to `take(row, column, values)`. AVX-512's kernels are of even numbers of rows: the
    // memory of `input` may be read, not used, one row beyond the last.
    template <typename Take>
    void multiply(const std::byte* input, size_t stride, int rows, Range panels, Take take) const {
        alignas(64) float tile[BLOCK * MOST_PANELS * PANEL];
        const bool tiled = in_tiles(format_, rows), numbers = whole(format_);
        const std::byte* const packed = (tiled && format_ == Format::INT16 ? planes_ : weights_).get();
        const int most = tiled ? TILE_ROWS : BLOCK, blocks = (rows + most - 1) / most;
        for (int panel = panels.begin, done; panel < panels.end; panel += done) {
            const std::byte* const weights = packed + static_cast<size_t>(panel) * panel_bytes_;
            done = 1;
            for (int block = 0; block < blocks; ++block) {
                const Range some = Range::share(rows, block, blocks);
                const Kernels& kernels = choose(some.end - some.begin);
                const bool wide = blocks == 1 && panels.end - panel >= kernels.panels;
                if (wide) done = kernels.panels;
                (wide ? kernels.wide : kernels.narrow)(
                    input + static_cast<size_t>(some.begin) * stride, stride, some.end - some.begin,
                    weights, panel_bytes_, inputs_, tile);
                for (int c = 0; c < done * PANEL_VECS; ++c) {
                    const int column = panel * PANEL + c * LANES;
                    const Vec bias = load(bias_.get() + column);
                    const Vec scales = load(scales_.get() + column);
                    const VecInt added = *reinterpret_cast<const VecInt*>(added_.get() + column);
                    const float* sums = tile + c * LANES;
                    for (int row = some.begin; row < some.end; ++row, sums += done * PANEL) {
                        if (!numbers) {
                            take(row, column, load(sums) + bias);
                            continue;
                        }
                        const Vec scale = broadcast(InputFormat::scale(input + row * stride, stride));
                        take(row, column, fma(__builtin_convertvector((VecInt)load(sums) - added, Vec),
                                              scale * scales, bias));
                    }
                }
            }
        }
    }

private:
    // What 1 stands for among an output's weights: the least that keeps them and their sum in bounds.
    float scale_of(const float* weights, int count) const {
        double largest = 1e-30, total = 0;
        for (int i = 0; i < count; ++i) {
            largest = std::max(largest, std::abs(double{weights[i]}));
            total += std::abs(double{weights[i]});
        }
        if (!std::isfinite(total)) return std::numeric_limits<float>::quiet_NaN();
        const double room = most_weights(format_, inputs_) - count;  // rounding may add ½ to each, and float's
        const int most = format_ == Format::INT8 ? INT8_MAX : INT16_MAX;
        return static_cast<float>(std::max(largest / most, total / room));
    }

    void put(int output, size_t input, float weight) {
        std::byte* panel = weights_.get() + static_cast<size_t>(output / PANEL) * panel_bytes_;
        const size_t column = static_cast<size_t>(output % PANEL);
        const size_t together = static_cast<size_t>(inputs_of(format_));
        const size_t place = (input / together * PANEL + column) * together + input % together;
        if (format_ == Format::FLOAT32) reinterpret_cast<float*>(panel)[place] = weight;
        else if (format_ == Format::BF16)
            reinterpret_cast<uint16_t*>(panel)[place] = to_bf16(weight);
        else {
            const long number = std::lrint(weight);
            if (format_ == Format::INT16) {
                reinterpret_cast<int16_t*>(panel)[place] = static_cast<int16_t>(number);
                if (TILES) put_planes(output, input, number);
            } else {
                const size_t byte = place - input % together + byte_of(input % together);
                reinterpret_cast<int8_t*>(panel)[byte] = static_cast<int8_t>(number);
                added_.get()[output] += UNSIGNED * static_cast<int32_t>(number);
            }
        }
    }

    void put_planes(int output, size_t input, long number) {
        const size_t column = static_cast<size_t>(output % PANEL);
        std::byte* const high =
            planes_.get() + static_cast<size_t>(output / PANEL) * panel_bytes_ +
            place_in_planes(column, input, panel_bytes_ / (2 * size_t{PANEL}));
        high[0] = static_cast<std::byte>(number >> 8);
        high[TILE_BYTES] = static_cast<std::byte>(number);
    }

    const Kernels& choose(int rows) const {
#if defined(__AMX_INT8__)
        if (in_tiles(format_, rows)) return TILE_KERNELS[format_ == Format::INT8];
#endif
        const Kernels* kernels = format_ == Format::INT8    ? KERNELS<Format::INT8>
                                 : format_ == Format::INT16 ? KERNELS<Format::INT16>
                                 : format_ == Format::BF16  ? KERNELS<Format::BF16>
                                                            : KERNELS<Format::FLOAT32>;
        while (kernels->rows < rows) ++kernels;
        return *kernels;
    }

    Format format_ = Format::FLOAT32;
    int inputs_ = 0, panels_ = 0;
    size_t panel_bytes_ = 0;
    Buffer<std::byte> weights_;
    Buffer<std::byte> planes_;  // the same ones of 16 bits once more, for tiles
    Buffer<float> bias_, scales_;  // what 1 stands for among an output's weights
    Buffer<int32_t> added_;
};

}  // namespace scanline
