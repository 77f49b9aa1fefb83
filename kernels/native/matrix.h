// Weight matrices packed for streaming, and their product with a few rows of activations.
//
// Outputs are grouped in panels of PANEL. A panel holds, for each group of GROUP_SIZE inputs, the weights
// of all its outputs (`weight_position`, or `Int10Group`). A kernel keeps one accumulator per row and
// output and adds the inputs in order, or sums integers exactly. A row's result is therefore the same
// whether it is computed alone or with others (batch invariance).
#pragma once

#include <limits>

#include "amx_tiles.h"

namespace scanline {

// PANEL_VECS is the number of vectors in a panel and BLOCK the maximum number of rows per kernel. The
// sums, the panel's weights and one activation must fit in the 32 or 16 registers.
#if defined(__aarch64__)
constexpr int PANEL_VECS = 4;  // NEON has 32 registers of 4 floats
#else
constexpr int PANEL_VECS = 2;
#endif
#if defined(__AVX512F__)
constexpr int BLOCK = 12;
#else
constexpr int BLOCK = 6;
#endif
// Up to this number of rows, INT10 is multiplied from its own layout. With more rows, unpacking the
// weights takes longer than reading them, so they are read from a copy in the layout of INT16. (With AMX
// the copy is for tiles, from MIN_TILE_ROWS rows on.)
#if defined(__AVX512F__)
constexpr int MAX_INT10_ROWS = 8;
#else
constexpr int MAX_INT10_ROWS = 1;
#endif
constexpr int PANEL = PANEL_VECS * LANES;
static_assert(!TILES || PANEL == TILE_PANEL);

struct Range {
    int begin, end;

    // Return part `index` of the range [0, count) split into `parts` nearly equal parts.
    static Range part(int count, int index, int parts) {
        const auto at = [&](int i) { return static_cast<int>(int64_t{count} * i / parts); };
        return {at(index), at(index + 1)};
    }
};

// Prefetch the next panel in kernels with many rows, which have time for it. After the last panel this
// prefetches memory that is never read, which is harmless.
template <int R>
inline void prefetch_panel(const std::byte* next, size_t bytes) {
    if constexpr (2 * R >= BLOCK)
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 3);
}

// Multiply R rows by P adjacent panels: tile[r][column] = Σ_k input[r][k] · weight[k][column], an
// integer for integer formats. With few rows, several panels at once give enough independent sums to
// hide the latency of an instruction. The unnamed parameter is the number of used rows, which only AMX
// kernels need.
template <Format F, int R, int P>
void multiply(const std::byte* input, size_t stride, int, const std::byte* panel, size_t panel_bytes,
              int inputs, float* tile) {
    constexpr size_t VEC_BYTES = LANES * GROUP_SIZE<F> * weight_bits(F) / 8;
    constexpr size_t BYTES = PANEL_VECS * VEC_BYTES;
    Vec sums[R][P][PANEL_VECS];
    const auto each_sum = [&](auto f) ALWAYS_INLINE {
        unroll<R>([&](auto r) ALWAYS_INLINE {
            unroll<P>([&](auto p) ALWAYS_INLINE {
                unroll<PANEL_VECS>([&](auto c) ALWAYS_INLINE { f(r, p, c); });
            });
        });
    };
    each_sum([&](auto r, auto p, auto c) ALWAYS_INLINE { sums[r][p][c] = Vec{}; });
    for (size_t k = 0; k < static_cast<size_t>(inputs); k += GROUP_SIZE<F>, panel += BYTES) {
        prefetch_panel<R>(panel + panel_bytes, BYTES);
        unroll<P>([&](auto p) ALWAYS_INLINE {
            const std::byte* const w = panel + p * panel_bytes;
            // One step after the other, because the unpacked weights of all would not fit in
            // registers.
            unroll<DOT_STEPS<F>>([&](auto dot_step) ALWAYS_INLINE {
                VecInt weights[PANEL_VECS];
                unroll<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                    weights[c] = unpack<F>(w + c * VEC_BYTES, dot_step);
                });
                unroll<R>([&](auto r) ALWAYS_INLINE {
                    const Vec a = broadcast_input<F>(input + r * stride, k, dot_step);
                    unroll<PANEL_VECS>([&](auto c) ALWAYS_INLINE {
                        accumulate<F>(sums[r][p][c], weights[c], a, dot_step);
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

// Kernels for `rows` rows: `wide` multiplies `panels` panels at once, `narrow` one.
struct Kernels {
    int rows, panels;
    Kernel wide, narrow;
};
template <Format F, int R, int P>
constexpr Kernels kernels() {
    // INT10 has no kernels for more rows, which would take long to compile.
    constexpr Format used = F == Format::INT10 && R > MAX_INT10_ROWS ? Format::INT16 : F;
    return {R, P, multiply<used, R, P>, multiply<used, R, 1>};
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
constexpr int MAX_PANELS = 4;

// A packed linear map with bias. Inputs and outputs may have gaps, such as the padding between heads,
// where all weights are zero.
class PackedLinear {
public:
    // `width` is the number of a row's elements, padding included. `inputs` bounds the number of inputs and
    // must be the same on every CPU, because integers are limited by it.
    PackedLinear(int outputs, int width, int inputs, Format format)
        : format_(format), width_(round_up(width, 4)), panels_((outputs + PANEL - 1) / PANEL),
          max_input_(max_input(format, round_up(inputs, 4))),
          max_weight_sum_(max_weight_sum(format, round_up(inputs, 4))),
          panel_bytes_(static_cast<size_t>(round_up(width, input_multiple(format))) * PANEL *
                       static_cast<size_t>(weight_bits(format)) / 8),
          copy_panel_bytes_(static_cast<size_t>(round_up(width, input_multiple(Format::INT16))) *
                            PANEL * sizeof(int16_t)),
          weights_(panel_bytes_ * static_cast<size_t>(panels_)),
          copy_(has_copy(format) ? copy_panel_bytes_ * static_cast<size_t>(panels_) : 0),
          bias_(static_cast<size_t>(panels_) * PANEL), scales_(static_cast<size_t>(panels_) * PANEL),
          offset_sums_(static_cast<size_t>(panels_) * PANEL) {}

    // Set the weights of one output. Weight i of `count` applies to element `position(i)` of an input
    // row.
    template <typename Position>
    void set(int output, const float* weights, int count, float bias, Position position) {
        set_bias(output, bias);
        const float scale = is_integer(format_) ? weight_scale(weights, count) : 1.0f;
        scales_.get()[output] = scale;
        for (int i = 0; i < count; ++i)
            store_weight(output, static_cast<size_t>(position(i)), weights[i] / scale);
    }
    void set_bias(int output, float bias) { bias_.get()[output] = bias; }

    // Set all weights from PyTorch's [outputs, inputs] matrix.
    void fill(const float* weight, const float* bias, int outputs, int inputs) {
        for (int o = 0; o < outputs; ++o)
            set(o, weight + static_cast<size_t>(o) * inputs, inputs, bias[o], [](int i) { return i; });
    }

    InputFormat format() const { return InputFormat(format_); }  // of the input
    int panels() const { return panels_; }
    // Bytes of weights that a product of `rows` rows reads.
    size_t bytes(int rows) const {
        return (reads_copy(rows) ? copy_panel_bytes_ : panel_bytes_) * static_cast<size_t>(panels_);
    }

    // Convert complete rows for `multiply` (see InputFormat::finish).
    const std::byte* finish(const std::byte* rows, size_t stride, int count, std::byte* output) const {
        return format().finish(rows, stride, count, width_, max_input_, output);
    }

    // Multiply finished rows by a range of panels and call `emit(row, column, values)` with each vector
    // of the result, bias included. Except for one row, AVX-512 kernels have even numbers of rows, and
    // AMX kernels have those of the longest block. So one row after the last may be read, but is not used.
    template <typename Emit>
    void multiply(const std::byte* input, size_t stride, int rows, Range panels, Emit emit) const {
        alignas(64) float tile[BLOCK * MAX_PANELS * PANEL];
        const bool tiled = uses_tiles(format_, rows), integers = is_integer(format_);
        const bool copied = reads_copy(rows);
        const std::byte* const packed = (copied ? copy_ : weights_).get();
        const size_t panel_bytes = copied ? copy_panel_bytes_ : panel_bytes_;
        const int max_rows = tiled ? TILE_ROWS : BLOCK, blocks = (rows + max_rows - 1) / max_rows;
        for (int panel = panels.begin, done; panel < panels.end; panel += done) {
            const std::byte* const weights = packed + static_cast<size_t>(panel) * panel_bytes;
            done = 1;
            for (int block = 0; block < blocks; ++block) {
                const Range block_rows = Range::part(rows, block, blocks);
                const Kernels& kernels = choose(block_rows.end - block_rows.begin, copied);
                const bool wide = blocks == 1 && panels.end - panel >= kernels.panels;
                if (wide) done = kernels.panels;
                (wide ? kernels.wide : kernels.narrow)(
                    input + static_cast<size_t>(block_rows.begin) * stride, stride,
                    block_rows.end - block_rows.begin, weights, panel_bytes, width_, tile);
                for (int c = 0; c < done * PANEL_VECS; ++c) {
                    const int column = panel * PANEL + c * LANES;
                    const Vec bias = load(bias_.get() + column);
                    const Vec scales = load(scales_.get() + column);
                    const VecInt offsets =
                        *reinterpret_cast<const VecInt*>(offset_sums_.get() + column);
                    const float* sums = tile + c * LANES;
                    for (int row = block_rows.begin; row < block_rows.end;
                         ++row, sums += done * PANEL) {
                        if (!integers) {
                            emit(row, column, load(sums) + bias);
                            continue;
                        }
                        const Vec scale = broadcast(InputFormat::scale(input + row * stride, stride));
                        const VecInt exact = (VecInt)load(sums) - offsets;
                        emit(row, column,
                             fma(__builtin_convertvector(exact, Vec), scale * scales, bias));
                    }
                }
            }
        }
    }

private:
    // True if 16-bit inputs have a copy of the weights for many rows: planes of bytes for AMX, otherwise
    // INT10's weights as INT16.
    static constexpr bool has_copy(Format format) {
        return TILES ? has_int16_inputs(format) : format == Format::INT10;
    }
    bool reads_copy(int rows) const {
        return has_copy(format_) && (TILES ? uses_tiles(format_, rows) : rows > MAX_INT10_ROWS);
    }

    // Return the smallest scale that keeps an output's quantized weights and their sum in bounds.
    float weight_scale(const float* weights, int count) const {
        double largest = 1e-30, total = 0;
        for (int i = 0; i < count; ++i) {
            largest = std::max(largest, std::abs(double{weights[i]}));
            total += std::abs(double{weights[i]});
        }
        if (!std::isfinite(total)) return std::numeric_limits<float>::quiet_NaN();
        // Leave room for rounding, which may add ½ to each weight, and for float32's precision.
        const double max_sum = max_weight_sum_ - count;
        return static_cast<float>(std::max(largest / max_weight(format_), total / max_sum));
    }

    void store_weight(int output, size_t input, float weight) {
        const size_t panel = static_cast<size_t>(output / PANEL);
        const auto column = static_cast<size_t>(output % PANEL);
        std::byte* const packed = weights_.get() + panel * panel_bytes_;
        const auto at = [&](Format f) { return weight_position(f, input, column, PANEL); };
        if (format_ == Format::FLOAT32) reinterpret_cast<float*>(packed)[at(format_)] = weight;
        else if (format_ == Format::BF16)
            reinterpret_cast<uint16_t*>(packed)[at(format_)] = to_bf16(weight);
        else {
            const auto number = static_cast<int>(std::lrint(weight));
            if (format_ == Format::INT8) {
                reinterpret_cast<int8_t*>(packed)[at(format_)] = static_cast<int8_t>(number);
                offset_sums_.get()[output] += INT8_OFFSET * number;
                return;
            }
            std::byte* const copy = copy_.get() + panel * copy_panel_bytes_;
            if (TILES) store_planes(copy, column, input, number);
            if (format_ == Format::INT10) {
                const size_t group = input / INT10_GROUP * PANEL_VECS + column / LANES;
                reinterpret_cast<Int10Group*>(packed)[group].set(input % INT10_GROUP, column % LANES,
                                                                 number);
                if (TILES) return;
            }
            reinterpret_cast<int16_t*>(format_ == Format::INT10 ? copy : packed)[at(Format::INT16)] =
                static_cast<int16_t>(number);
        }
    }

    void store_planes(std::byte* panel, size_t column, size_t input, int number) {
        std::byte* const high =
            panel + plane_offset(column, input, copy_panel_bytes_ / (2 * size_t{PANEL}));
        high[0] = static_cast<std::byte>(number >> 8);
        high[TILE_BYTES] = static_cast<std::byte>(number);
    }

    const Kernels& choose(int rows, bool copied) const {
#if defined(__AMX_INT8__)
        if (uses_tiles(format_, rows)) return TILE_KERNELS[format_ == Format::INT8];
#endif
        const Format layout = copied ? Format::INT16 : format_;
        const Kernels* kernels = layout == Format::INT8    ? KERNELS<Format::INT8>
                                 : layout == Format::INT10 ? KERNELS<Format::INT10>
                                 : layout == Format::INT16 ? KERNELS<Format::INT16>
                                 : layout == Format::BF16  ? KERNELS<Format::BF16>
                                                           : KERNELS<Format::FLOAT32>;
        while (kernels->rows < rows) ++kernels;
        return *kernels;
    }

    Format format_;
    int width_, panels_;
    int max_input_, max_weight_sum_;
    size_t panel_bytes_, copy_panel_bytes_;
    Buffer<std::byte> weights_;
    Buffer<std::byte> copy_;        // the weights again, in the layout for many rows
    Buffer<float> bias_, scales_;   // per output
    Buffer<int32_t> offset_sums_;   // what INT8_OFFSET adds to each output's sum
};

}  // namespace scanline
