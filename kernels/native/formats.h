// Number formats of a matrix product's weights and inputs, and one multiply-add in each of them.
//
// The formats are float32, bf16, and 8-bit or up to 16-bit integers. Integers have one scale per input
// row and one per output's weights, and are small enough that no sum exceeds 32 bits. Integer sums are
// exact, so the order of additions does not change them, and the CPU multiplies two or four integers in
// the space of one float32. INT10 has the inputs of INT16 and weights of 10 bits, which a few rows read
// from memory in less time.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>

#include "buffer.h"
#include "vector.h"

namespace scanline {

// In the order of `Precision` in kernels/native/abi.py.
enum class Format : int32_t { FLOAT32, BF16, INT16, INT8, INT10 };
constexpr bool has_int16_inputs(Format f) { return f == Format::INT16 || f == Format::INT10; }
constexpr bool is_integer(Format f) { return has_int16_inputs(f) || f == Format::INT8; }

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool BF16_DOT = true;  // vdpbf16ps, bfdot: dot product of bf16 pairs
#else
constexpr bool BF16_DOT = false;
#endif
#if defined(__SSE2__)
constexpr bool INT16_DOT = true;  // vpmaddwd: dot product of int16 pairs
#else
constexpr bool INT16_DOT = false;
#endif
#if defined(__aarch64__)
constexpr bool WIDENING = true;  // smlal: product of int16 vectors with sums of 32 bits
#else
constexpr bool WIDENING = false;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool INT8_DOT = true;  // vpdpbusd: dot product of four bytes, unsigned × signed
constexpr int INT8_OFFSET = 128;    // added to 8-bit inputs to make them unsigned
#else
#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool INT8_DOT = true;  // sdot: dot product of four signed bytes
#else
constexpr bool INT8_DOT = false;
#endif
constexpr int INT8_OFFSET = 0;
#endif

// AMX multiplies tiles of integers (amx_tiles.h). Below MIN_TILE_ROWS rows it brings nothing, because
// the product is limited by reading the weights.
constexpr int TILE_INPUTS = 64, MIN_TILE_ROWS = 7;
#if defined(__AMX_INT8__)
constexpr bool uses_tiles(Format f, int rows) { return is_integer(f) && rows >= MIN_TILE_ROWS; }
#else
constexpr bool uses_tiles(Format, int) { return false; }
#endif
constexpr bool TILES = uses_tiles(Format::INT8, MIN_TILE_ROWS);

// GROUP_SIZE consecutive inputs have their weights of one output side by side. One instruction
// multiplies DOT_WIDTH of them and adds the products, so a group takes DOT_STEPS instructions.
constexpr int INT10_GROUP = 16;
constexpr int group_size(Format f) {
    return f == Format::FLOAT32 ? 1 : f == Format::INT8 ? 4 : f == Format::INT10 ? INT10_GROUP : 2;
}
template <Format F>
constexpr int GROUP_SIZE = group_size(F);
template <Format F>
constexpr int DOT_WIDTH = F == Format::INT8 && INT8_DOT                                ? 4
                        : (F == Format::BF16 && BF16_DOT) || (is_integer(F) && INT16_DOT) ? 2
                                                                                     : 1;
template <Format F>
constexpr int DOT_STEPS = GROUP_SIZE<F> / DOT_WIDTH<F>;

// True if integers are multiplied by widening instructions, each of which takes one input of a group and
// a vector of outputs. Their weights are then side by side.
template <Format F>
constexpr bool WIDENS = WIDENING && is_integer(F) && DOT_WIDTH<F> == 1;

// Position of a group's 8-bit weights within their four bytes. Without 8-bit dot products, two weights
// that are multiplied together are in the same half of two 16-bit numbers, so that shifts unpack them.
constexpr size_t byte_in_group(size_t input) { return INT8_DOT ? input : input / 2 + input % 2 * 2; }

// Position of a weight, as a number of weights, in a panel of `panel` outputs.
inline size_t weight_position(Format f, size_t input, size_t output, size_t panel) {
    const auto size = static_cast<size_t>(group_size(f)), lanes = static_cast<size_t>(LANES);
    const size_t group = input / size, i = input % size, vector = output / lanes * lanes;
    if (f == Format::INT16 ? WIDENS<Format::INT16> : f == Format::INT8 && WIDENS<Format::INT8>)
        return (group * panel + vector) * size + (i % 2 * lanes + output % lanes) * (size / 2) + i / 2;
    return (group * panel + output) * size + (f == Format::INT8 ? byte_in_group(i) : i);
}

constexpr int weight_bits(Format f) {
    return f == Format::FLOAT32 ? 32 : f == Format::INT8 ? 8 : f == Format::INT10 ? 10 : 16;
}
// The largest absolute weight of an integer format.
constexpr int max_weight(Format f) { return (1 << (weight_bits(f) - 1)) - 1; }

// The number of inputs is padded to a multiple of this, with zero weights.
constexpr int input_multiple(Format f) {
    return TILES && is_integer(f) ? TILE_INPUTS : f == Format::INT10 ? INT10_GROUP : 4;
}

// The largest quantized input, and the largest sum of absolute weights of one output. Their product
// fits in 32 bits, also with INT8_OFFSET. For int16, weights and inputs get about the same precision.
// They decide how inputs and weights are rounded, so `inputs` must be the same on every CPU.
inline int max_input(Format f, int inputs) {
    if (f == Format::INT8) return INT8_MAX;
    return std::min(INT16_MAX, static_cast<int>(std::sqrt(0x1p35 / inputs)));
}
inline int max_weight_sum(Format f, int inputs) {
    return INT_MAX / (max_input(f, inputs) + (f == Format::INT8 ? 128 : 0));
}

typedef uint32_t VecUnsigned __attribute__((vector_size(sizeof(Vec)), may_alias));
typedef int8_t VecInt8 __attribute__((vector_size(LANES), may_alias));
typedef int16_t VecInt16 __attribute__((vector_size(2 * LANES), may_alias));
typedef int16_t VecInt16Pairs __attribute__((vector_size(sizeof(Vec)), may_alias));

// A group's 10-bit weights of LANES outputs. Its eight pairs of inputs each have a vector of 16-bit
// numbers, as in INT16. The upper bytes of two pairs share a vector, and the lower two bits of all pairs
// share another, so that shifts unpack them.
struct Int10Group {
    VecInt16Pairs upper[INT10_GROUP / 4], lower;

    ALWAYS_INLINE VecInt pair(size_t i) const {
        const VecInt16Pairs bytes = upper[i / 2];
        return (VecInt)((i % 2 == 0 ? bytes << 8 >> 6 : bytes >> 8 << 2) |
                        (lower >> static_cast<int>(2 * i) & 3));
    }
    void set(size_t input, size_t output, int weight) {
        const size_t i = input / 2;
        const size_t at = WIDENS<Format::INT10> ? input % 2 * LANES + output : output * 2 + input % 2;
        const auto byte = static_cast<unsigned>(weight >> 2 & 0xff) << 8 * (i % 2);
        const auto bits = static_cast<unsigned>(weight & 3) << 2 * i;
        upper[i / 2][at] = static_cast<int16_t>(static_cast<unsigned>(upper[i / 2][at]) | byte);
        lower[at] = static_cast<int16_t>(static_cast<unsigned>(lower[at]) | bits);
    }
};

// Unpack the weights at `address` that `accumulate` takes in step `dot_step`.
template <Format F>
ALWAYS_INLINE inline VecInt unpack(const std::byte* address, size_t dot_step) {
    if constexpr (F == Format::INT10) {
        const VecInt pair =
            reinterpret_cast<const Int10Group*>(address)->pair(dot_step * DOT_WIDTH<F> / 2);
        if (DOT_WIDTH<F> == 2 || WIDENS<F>) return pair;
        return dot_step % 2 == 0 ? pair << 16 >> 16 : pair >> 16;
    }
    const VecInt weights = *reinterpret_cast<const VecInt*>(address);
    if constexpr (DOT_STEPS<F> == 1 || (F == Format::INT16 && WIDENS<F>)) return weights;
    if constexpr (WIDENS<F>)
        return (VecInt)(dot_step < 2 ? (VecInt16Pairs)weights << 8 >> 8 : (VecInt16Pairs)weights >> 8);
    if constexpr (DOT_STEPS<F> == 4)
        return weights << (24 - 8 * static_cast<int>(byte_in_group(dot_step))) >> 24;
    if constexpr (F == Format::INT8)
        return (VecInt)(dot_step == 0 ? (VecInt16Pairs)weights << 8 >> 8 : (VecInt16Pairs)weights >> 8);
    if constexpr (F == Format::BF16)
        return dot_step == 0 ? weights << 16 : weights & static_cast<int32_t>(0xffff0000u);
    return dot_step == 0 ? weights << 16 >> 16 : weights >> 16;
}

// Broadcast to all lanes the inputs of a row's group at k that belong to step `dot_step`.
template <Format F>
ALWAYS_INLINE inline Vec broadcast_input(const std::byte* row, size_t k, size_t dot_step) {
    k += dot_step * DOT_WIDTH<F>;
    if constexpr (WIDENS<F>)
        return (Vec)(VecInt16Pairs{} + reinterpret_cast<const int16_t*>(row)[k]);
    if constexpr (is_integer(F) && DOT_WIDTH<F> == 1)
        return (Vec)(VecInt{} + reinterpret_cast<const int16_t*>(row)[k]);
    return broadcast(*reinterpret_cast<const float*>(row + k * (4 / DOT_WIDTH<F>)));
}

// sum += weights · a, both for step `dot_step`. Integers wrap modulo 2^32, because the unused extra row of
// an odd block (see PackedLinear::multiply) may overflow.
template <Format F>
ALWAYS_INLINE inline void accumulate(Vec& sum, VecInt weights, Vec a,
                                     [[maybe_unused]] size_t dot_step = 0) {
    if constexpr (is_integer(F)) {
#if defined(__AVX512VNNI__)
        const auto total = (__m512i)sum;
        if constexpr (F == Format::INT8)
            sum = (Vec)_mm512_dpbusd_epi32(total, (__m512i)a, (__m512i)weights);
        else
            sum = (Vec)_mm512_dpwssd_epi32(total, (__m512i)weights, (__m512i)a);
#elif defined(__AVXVNNI__)
        const auto total = (__m256i)sum;
        if constexpr (F == Format::INT8)
            sum = (Vec)_mm256_dpbusd_avx_epi32(total, (__m256i)a, (__m256i)weights);
        else
            sum = (Vec)_mm256_dpwssd_avx_epi32(total, (__m256i)weights, (__m256i)a);
#elif defined(__AVX512BW__)
        sum = (Vec)((VecUnsigned)sum + (VecUnsigned)_mm512_madd_epi16((__m512i)weights, (__m512i)a));
#elif defined(__AVX2__)
        const __m256i products = _mm256_madd_epi16((__m256i)weights, (__m256i)a);
        // Inline assembly keeps the sum in its register, see below.
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
#elif defined(__SSE2__)
        sum = (Vec)((VecUnsigned)sum + (VecUnsigned)_mm_madd_epi16((__m128i)weights, (__m128i)a));
#else
#if defined(__ARM_FEATURE_DOTPROD)
        if constexpr (F == Format::INT8) {
            sum = (Vec)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, (int8x16_t)a);
            return;
        }
#endif
#if defined(__aarch64__)
        const auto w = (int16x8_t)weights, x = (int16x8_t)a;
        sum = (Vec)(dot_step % 2 == 0
                        ? vmlal_s16((int32x4_t)sum, vget_low_s16(w), vget_low_s16(x))
                        : vmlal_high_s16((int32x4_t)sum, w, x));
#else
        sum = (Vec)((VecUnsigned)sum + (VecUnsigned)weights * (VecUnsigned)a);
#endif
#endif
        return;
    }
#if defined(__AVX512BF16__)
    if constexpr (DOT_WIDTH<F> > 1) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)a);
        return;
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if constexpr (DOT_WIDTH<F> > 1) {
        sum = (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)weights, (bfloat16x8_t)a);
        return;
    }
#endif
#if defined(__FMA__) && !defined(__AVX512F__)
    // With the intrinsic, gcc moves the sums between registers and spills others.
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(a));
#else
    sum = fma((Vec)weights, a, sum);
#endif
}

// Memory layout of a product's input rows. bf16 is stored as bf16 if the CPU multiplies it, otherwise
// as float32 rounded to bf16, so that all ISAs agree. Integer formats store float32 until the row is
// complete, because the scale depends on the row's largest value.
class InputFormat {
public:
    explicit InputFormat(Format format) : format_(format) {}

    // Bytes from one row to the next: an odd number of cache lines, so that the rows of a block do not
    // map to the same sets of the L1 cache.
    size_t stride(int width) const {
        const int each = format_ == Format::BF16 && BF16_DOT ? 2 : 4;
        const int bytes = round_up(width, input_multiple(format_)) * each;
        const int scale = is_integer(format_) ? 64 : 0;
        return static_cast<size_t>(round_up(bytes + scale, 64) / 64 | 1) * 64;
    }

    // Store a vector of a row's values from `column` on.
    void store_vector(std::byte* row, int column, Vec v) const {
#if defined(__AVX512BF16__)
        if (format_ == Format::BF16) {
            const auto half = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_store_si256(reinterpret_cast<__m256i*>(row + column * 2), half);
            return;
        }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        if (format_ == Format::BF16) {
            vst1_bf16(reinterpret_cast<bfloat16_t*>(row) + column, vcvt_bf16_f32((float32x4_t)v));
            return;
        }
#endif
        store(reinterpret_cast<float*>(row) + column,
              format_ == Format::BF16 ? round_to_bf16(v) : v);
    }

    // Convert complete rows of `width` values for `multiply`. Integer formats are quantized to at most
    // `limit` into `output`, which may be the same memory; other formats return `rows` unchanged.
    const std::byte* finish(const std::byte* rows, size_t stride, int count, int width, int limit,
                            std::byte* output) const {
        if (!is_integer(format_)) return rows;
        const bool planes = has_int16_inputs(format_) && uses_tiles(format_, count);
        for (int r = 0; r < count; ++r)
            quantize(rows + r * stride, stride, width, limit, planes, output + r * stride);
        return output;
    }

    // Scale of a finished row: the value of the integer 1.
    static float scale(const std::byte* row, size_t stride) {
        return reinterpret_cast<const float*>(row + stride)[-1];
    }

private:
    void quantize(const std::byte* row, size_t stride, int width, int max_number, bool planes,
                  std::byte* output) const {
        const float* const x = reinterpret_cast<const float*>(row);
        VecInt bits = {};  // of the largest magnitude; as integers, infinity and NaN are above all
        for (int i = 0; i < width; i += LANES) {
            const VecInt magnitude = (VecInt)absolute(load(x + i));
            bits = magnitude > bits ? magnitude : bits;
        }
        const Vec maxima = (Vec)bits;
        // NaN if the row holds infinity or NaN, which integers cannot represent.
        const float nan_or_zero = horizontal_sum(maxima * 0.0f);
        const float size = std::max(horizontal_max(maxima), 1e-30f);
        const float limit = static_cast<float>(max_number);
        const Vec factor = broadcast(limit / size);
        // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits.
        const auto number = [&](int i) ALWAYS_INLINE {
            return (VecInt)(load(x + i) * factor + broadcast(12582912.0f)) - 0x4b400000;
        };
        const auto put_bytes = [](std::byte* address, VecInt numbers) ALWAYS_INLINE {
            *reinterpret_cast<VecInt8*>(address) = __builtin_convertvector(numbers, VecInt8);
        };
        if (format_ == Format::INT8 && INT8_DOT)
            for (int i = 0; i < width; i += LANES) put_bytes(output + i, number(i) + INT8_OFFSET);
        else if (planes)
            for (int i = 0; i < width; i += TILE_INPUTS) {
                // Read all values before writing, because the memory may be shared.
                VecInt numbers[TILE_INPUTS / LANES];
                for (int j = 0; j < TILE_INPUTS; j += LANES) numbers[j / LANES] = number(i + j);
                for (int j = 0; j < TILE_INPUTS; j += LANES) {
                    put_bytes(output + 2 * i + j, numbers[j / LANES] >> 8);
                    put_bytes(output + 2 * i + TILE_INPUTS + j, numbers[j / LANES]);
                }
            }
        else
            for (int i = 0; i < width; i += LANES)
                *reinterpret_cast<VecInt16*>(output + i * 2) =
                    __builtin_convertvector(number(i), VecInt16);
        reinterpret_cast<float*>(output + stride)[-1] = size / limit + nan_or_zero;
    }

    Format format_;
};

}  // namespace scanline
