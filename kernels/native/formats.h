// The formats that a product's weights and inputs are kept in, and one multiply-add of each.
//
// float32; bf16; and whole numbers, of 8 bits or of as many as 16: with a scale for each row of inputs
// and for each output's weights, and so small that no sum exceeds 32 bits. Those sums are exact, so no
// order of adding changes them, and a CPU multiplies two or four of them where it takes one float32.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>

#include "vector.h"

namespace scanline {

// As `precision` in kernels/native/abi.py counts them.
enum class Format : int32_t { FLOAT32, BF16, INT16, INT8 };
constexpr bool whole(Format f) { return f == Format::INT16 || f == Format::INT8; }

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool BF16_DOT = true;  // vdpbf16ps, bfdot: pairs of bf16 multiplied, both products added
#else
constexpr bool BF16_DOT = false;
#endif
#if defined(__AVX512BW__) || defined(__AVX2__) || defined(__SSE2__)
constexpr bool INT16_DOT = true;  // vpmaddwd does so with pairs of int16
#else
constexpr bool INT16_DOT = false;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool INT8_DOT = true;  // vpdpbusd does so with four numbers, unsigned times signed
constexpr int UNSIGNED = 128;    // what is added to an input of 8 bits
#else
#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool INT8_DOT = true;  // sdot: both signed
#else
constexpr bool INT8_DOT = false;
#endif
constexpr int UNSIGNED = 0;
#endif

// AMX multiplies tiles of whole numbers (amx_tiles.h), which pays from so many rows on; fewer are computed
// as fast as their weights are read.
constexpr int TILE_INPUTS = 64, LEAST_TILE_ROWS = 7;
#if defined(__AMX_INT8__)
constexpr bool in_tiles(Format f, int rows) { return whole(f) && rows >= LEAST_TILE_ROWS; }
#else
constexpr bool in_tiles(Format, int) { return false; }
#endif
constexpr bool TILES = in_tiles(Format::INT8, LEAST_TILE_ROWS);

// Inputs whose weights lie side by side for each output; how many of them the CPU multiplies at once,
// adding the products; and how many turns that makes.
constexpr int inputs_of(Format f) { return f == Format::FLOAT32 ? 1 : f == Format::INT8 ? 4 : 2; }
template <Format F>
constexpr int INPUTS = inputs_of(F);
template <Format F>
constexpr int AT_ONCE = F == Format::INT8 && INT8_DOT                                ? 4
                        : (F == Format::BF16 && BF16_DOT) || (whole(F) && INT16_DOT) ? 2
                                                                                     : 1;
template <Format F>
constexpr int TURNS = INPUTS<F> / AT_ONCE<F>;

// Where in their four bytes the weights of an output lie: two that are multiplied at once are the same
// halves of two numbers of 16 bits, which a shift or two makes of them.
constexpr size_t byte_of(size_t input) { return INT8_DOT ? input : input / 2 + input % 2 * 2; }

constexpr int weight_bytes(Format f) {
    return f == Format::FLOAT32 ? 4 : f == Format::INT8 ? 1 : 2;
}

// What a product's inputs are filled up to, with weights of 0: so many are multiplied at once.
constexpr int depth_of(Format f) { return TILES && whole(f) ? TILE_INPUTS : 4; }

// The largest whole number of an input, and the most that the sizes of an output's weights may add up
// to: their product fits 32 bits. Of 16 bits, both are left about as exact as each other.
inline int most_input(Format f, int inputs) {
    if (f == Format::INT8) return INT8_MAX;
    return std::min(INT16_MAX, static_cast<int>(std::sqrt(0x1p35 / inputs)));
}
inline int most_weights(Format f, int inputs) {
    return INT_MAX / (most_input(f, inputs) + (f == Format::INT8 ? UNSIGNED : 0));
}

typedef uint32_t VecUnsigned __attribute__((vector_size(sizeof(Vec)), may_alias));
typedef int8_t Quarters __attribute__((vector_size(LANES), may_alias));
typedef int16_t Halves __attribute__((vector_size(2 * LANES), may_alias));
typedef int16_t Pairs __attribute__((vector_size(sizeof(Vec)), may_alias));

// The weights at `place` for a turn, as `accumulate` takes them.
template <Format F>
ALWAYS_INLINE inline VecInt unpack(const std::byte* place, size_t turn) {
    const VecInt weights = *reinterpret_cast<const VecInt*>(place);
    if constexpr (TURNS<F> == 1) return weights;
    if constexpr (TURNS<F> == 4) return weights << (24 - 8 * static_cast<int>(byte_of(turn))) >> 24;
    if constexpr (F == Format::INT8)
        return (VecInt)(turn == 0 ? (Pairs)weights << 8 >> 8 : (Pairs)weights >> 8);
    if constexpr (F == Format::BF16)
        return turn == 0 ? weights << 16 : weights & static_cast<int32_t>(0xffff0000u);
    return turn == 0 ? weights << 16 >> 16 : weights >> 16;
}

// An activation for every lane: the inputs of a row, from k on, that have this turn.
template <Format F>
ALWAYS_INLINE inline Vec spread(const std::byte* row, size_t k, size_t turn) {
    k += turn * AT_ONCE<F>;
    if constexpr (whole(F) && AT_ONCE<F> == 1)
        return (Vec)(VecInt{} + reinterpret_cast<const int16_t*>(row)[k]);
    return broadcast(*reinterpret_cast<const float*>(row + k * (4 / AT_ONCE<F>)));
}

// sum += weights · a; of whole numbers modulo 2^32, for a row too many (see Packed) has no bound.
template <Format F>
ALWAYS_INLINE inline void accumulate(Vec& sum, VecInt weights, Vec a) {
    if constexpr (whole(F)) {
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
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));  // or gcc moves sums about: see below
#elif defined(__SSE2__)
        sum = (Vec)((VecUnsigned)sum + (VecUnsigned)_mm_madd_epi16((__m128i)weights, (__m128i)a));
#else
#if defined(__ARM_FEATURE_DOTPROD)
        if constexpr (F == Format::INT8) {
            sum = (Vec)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, (int8x16_t)a);
            return;
        }
#endif
        sum = (Vec)((VecUnsigned)sum + (VecUnsigned)weights * (VecUnsigned)a);
#endif
        return;
    }
#if defined(__AVX512BF16__)
    if constexpr (AT_ONCE<F> > 1) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)a);
        return;
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if constexpr (AT_ONCE<F> > 1) {
        sum = (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)weights, (bfloat16x8_t)a);
        return;
    }
#endif
#if defined(__FMA__) && !defined(__AVX512F__)
    // gcc moves the sums of its own fma from register to register, and spills others for it.
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(a));
#else
    sum = fma((Vec)weights, a, sum);
#endif
}

// A product's input, row by row. bf16 is kept as such where the CPU multiplies it, and as a float
// rounded to bf16 elsewhere, so that all ISAs agree; what becomes whole numbers is kept as floats
// until a row is complete, since its scale is that of its largest value.
class InputFormat {
public:
    explicit InputFormat(Format format) : format_(format) {}

    // From one row to the next: an odd number of cache lines, or the rows of a block would fight
    // for the same few places of the first-level cache.
    size_t stride(int width) const {
        const int each = format_ == Format::BF16 && BF16_DOT ? 2 : 4;
        const int bytes = round_up(width, depth_of(format_)) * each;
        const int scale = whole(format_) ? 64 : 0;
        return static_cast<size_t>(round_up(bytes + scale, 64) / 64 | 1) * 64;
    }

    void put(std::byte* row, int column, Vec v) const {
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

    // Complete rows of `inputs` values as a product takes them: as they lie, or as whole numbers up
    // to `most_input` in `mine`, which may be the same memory.
    const std::byte* complete(const std::byte* rows, size_t stride, int count, int inputs,
                              std::byte* mine) const {
        if (!whole(format_)) return rows;
        const bool planes = format_ == Format::INT16 && in_tiles(format_, count);
        for (int r = 0; r < count; ++r)
            to_whole(rows + r * stride, stride, inputs, planes, mine + r * stride);
        return mine;
    }

    // What 1 stands for in a completed row.
    static float scale(const std::byte* row, size_t stride) {
        return reinterpret_cast<const float*>(row + stride)[-1];
    }

private:
    void to_whole(const std::byte* row, size_t stride, int inputs, bool planes,
                  std::byte* mine) const {
        const float* const x = reinterpret_cast<const float*>(row);
        VecInt bits = {};  // of the largest: in the order of sizes, with what is not finite above all
        for (int i = 0; i < inputs; i += LANES) {
            const VecInt some = (VecInt)absolute(load(x + i));
            bits = some > bits ? some : bits;
        }
        const Vec sizes = (Vec)bits;
        const float lost = sum(sizes * 0.0f);  // 0, or NaN where there is one: no whole number is
        const float size = std::max(largest(sizes), 1e-30f);
        const float most = static_cast<float>(most_input(format_, inputs));
        const Vec factor = broadcast(most / size);
        // Adding 1.5 · 2^23 rounds to a whole number, and leaves it in the low bits.
        const auto number = [&](int i) ALWAYS_INLINE {
            return (VecInt)(load(x + i) * factor + broadcast(12582912.0f)) - 0x4b400000;
        };
        const auto put_bytes = [](std::byte* place, VecInt numbers) ALWAYS_INLINE {
            *reinterpret_cast<Quarters*>(place) = __builtin_convertvector(numbers, Quarters);
        };
        if (format_ == Format::INT8 && INT8_DOT)
            for (int i = 0; i < inputs; i += LANES) put_bytes(mine + i, number(i) + UNSIGNED);
        else if (planes)
            for (int i = 0; i < inputs; i += TILE_INPUTS) {
                VecInt numbers[TILE_INPUTS / LANES];  // read before any is written
                for (int j = 0; j < TILE_INPUTS; j += LANES) numbers[j / LANES] = number(i + j);
                for (int j = 0; j < TILE_INPUTS; j += LANES) {
                    put_bytes(mine + 2 * i + j, numbers[j / LANES] >> 8);
                    put_bytes(mine + 2 * i + TILE_INPUTS + j, numbers[j / LANES]);
                }
            }
        else
            for (int i = 0; i < inputs; i += LANES)
                *reinterpret_cast<Halves*>(mine + i * 2) = __builtin_convertvector(number(i), Halves);
        reinterpret_cast<float*>(mine + stride)[-1] = size / most + lost;
    }

    Format format_;
};

}  // namespace scanline
