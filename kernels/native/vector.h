// `Vec`, a float32 SIMD vector as wide as the CPU's registers, and sums over the elements of a row. The
// compiler's -m flags choose the instruction set (see kernels/native/cpu.py).
//
// Results are the same on every CPU and from every compiler: only operations that IEEE 754 defines are
// used (+ - * / sqrt fma, comparisons, conversions), and the order of a sum does not depend on the width
// of `Vec` (`Lanes`). Everything is compiled with -ffp-contract=off, so that only explicit `fma` calls are
// fused. See docs/architecture.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ALWAYS_INLINE __attribute__((always_inline))

namespace scanline {

#if defined(__AVX512F__)
using Vec = __m512;
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
#elif defined(__AVX2__) && defined(__FMA__)
using Vec = __m256;
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
#else
typedef float Vec __attribute__((vector_size(16), may_alias));
#if defined(__aarch64__)
inline Vec fma(Vec a, Vec b, Vec c) {
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
// Without FMA instructions, compute a · b + c in float64 and round it to odd. Rounding that to float32
// gives the correctly rounded result (Boldo and Melquiond, 2008).
inline Vec fma_round_to_odd(Vec a, Vec b, Vec c) {
    typedef double Doubles __attribute__((vector_size(4 * sizeof(double))));
    typedef int64_t Bits __attribute__((vector_size(4 * sizeof(double))));
    const Doubles product =  // exact
        __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
    const Doubles addend = __builtin_convertvector(c, Doubles), sum = product + addend;
    const Doubles added = sum - product;
    const Doubles error = (product - (sum - added)) + (addend - added);  // exact; NaN for infinities
    const Bits positive = (Bits)(error > 0.0), inexact = positive | (Bits)(error < 0.0);
    const Bits even = ((Bits)sum & 1) - 1;
    // Step to the odd neighbour: away from zero if error and sum have the same sign.
    const Bits step = ~(~(positive ^ (Bits)(sum > 0.0)) << 1);
    return __builtin_convertvector((Doubles)((Bits)sum + (step & even & inexact)), Vec);
}
#if defined(__SSE2__)
// Rounding the float64 sum to nearest is faster. It can err only if that sum is halfway between two floats
// (its last 29 bits are a 1 followed by zeros), or if the result may be a denormal number, which has fewer
// bits.
inline Vec fma(Vec a, Vec b, Vec c) {
    typedef int32_t Integers __attribute__((vector_size(sizeof(Vec))));
    const auto add_product = [](__m128 x, __m128 y, __m128 z) ALWAYS_INLINE {
        return _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(y)), _mm_cvtps_pd(z));
    };
    const auto upper = [](Vec v) ALWAYS_INLINE { return _mm_movehl_ps((__m128)v, (__m128)v); };
    const __m128d sums[] = {add_product((__m128)a, (__m128)b, (__m128)c),
                            add_product(upper(a), upper(b), upper(c))};
    const __m128 first = _mm_castpd_ps(sums[0]), second = _mm_castpd_ps(sums[1]);
    const auto low = (Integers)_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0));
    const auto high = (Integers)_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)) & 0x7fffffff;
    constexpr int SMALLEST_NORMAL = 0x38100000;  // of float32, 2^-126: the upper half of its float64
    const auto halfway = (low & 0x1fffffff) == 0x10000000;
    const auto tiny = (high > 0) & (high < SMALLEST_NORMAL);
    if (_mm_movemask_ps((__m128)(halfway | tiny))) [[unlikely]] return fma_round_to_odd(a, b, c);
    return (Vec)_mm_movelh_ps(_mm_cvtpd_ps(sums[0]), _mm_cvtpd_ps(sums[1]));
}
#else
inline Vec fma(Vec a, Vec b, Vec c) { return fma_round_to_odd(a, b, c); }
#endif
#endif
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
#endif
typedef int32_t VecInt __attribute__((vector_size(sizeof(Vec)), may_alias));

constexpr int LANES = static_cast<int>(sizeof(Vec) / sizeof(float));

constexpr int round_up(int size, int multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

// `load` and `store` require alignment to the size of `Vec`, and memory padded to whole vectors.
inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline Vec select(VecInt mask, Vec yes, Vec no) {
    return (Vec)((mask & (VecInt)yes) | (~mask & (VecInt)no));
}
inline Vec absolute(Vec x) { return (Vec)((VecInt)x & 0x7fffffff); }

// a > b ? a : b and a < b ? a : b, so b if one is NaN.
#if defined(__AVX512F__)
// Masked intrinsics, because some unmasked ones and casts trigger uninitialised-value warnings in
// gcc 12's own headers (PR 105593).
inline Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(0xffff, a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(0xffff, a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
#else
inline Vec max(Vec a, Vec b) { return select((VecInt)(a > b), a, b); }
inline Vec min(Vec a, Vec b) { return select((VecInt)(a < b), a, b); }
#endif

// Combine lanes i and i + n / 2 of a vector of n lanes, then halve the result in the same way until one
// lane is left. `op` combines vectors of any size, and numbers.
template <typename Op>
inline float fold(Vec v, Op op) {
#if defined(__AVX2__) && defined(__FMA__)
    __m256 halves[2];
    std::memcpy(halves, &v, sizeof v);
#if defined(__AVX512F__)
    halves[0] = op(halves[0], halves[1]);
#endif
    const __m128 quarter =
        op(_mm256_castps256_ps128(halves[0]), _mm256_extractf128_ps(halves[0], 1));
    const __m128 pair = op(quarter, _mm_movehl_ps(quarter, quarter));
    return op(pair[0], pair[1]);
#else
    return op(op(v[0], v[2]), op(v[1], v[3]));
#endif
}
struct Add {
    template <typename T>
    T operator()(T a, T b) const {
        return a + b;
    }
};
struct Maximum {
    float operator()(float a, float b) const { return a > b ? a : b; }
#if defined(__AVX2__) && defined(__FMA__)
    __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(a, b); }
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(a, b); }
#endif
};
inline float horizontal_sum(Vec v) { return fold(v, Add{}); }
inline float horizontal_max(Vec v) { return fold(v, Maximum{}); }

// Call f(0) … f(N - 1) with compile-time constants, all inlined. Arrays indexed by them stay in
// registers, whereas gcc unrolls nested loops too late and keeps the sums in memory.
template <int N, typename F>
ALWAYS_INLINE inline void unroll(F f) {
    [&]<int... I>(std::integer_sequence<int, I...>) ALWAYS_INLINE {
        (f(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// A row is summed in 16 lanes on every CPU: element i is added to lane i mod 16, in ascending order, and
// then lanes i and i + 8, i + 4, i + 2 and i + 1 are added.
constexpr int SUM_LANES = 16, SUM_PARTS = SUM_LANES / LANES;
struct Lanes {
    Vec parts[SUM_PARTS] = {};

    Vec& operator[](int part) { return parts[part]; }
};

// Call `f(i, part)` for each vector of a row of `size` floats, a multiple of LANES. Its elements belong to
// `part`, a compile-time constant, of `Lanes`.
template <typename F>
ALWAYS_INLINE inline void for_each_vector(int size, F f) {
    int i = 0;
    for (; i + SUM_LANES <= size; i += SUM_LANES)
        unroll<SUM_PARTS>([&](auto part) ALWAYS_INLINE { f(i + part * LANES, part); });
    unroll<SUM_PARTS - 1>([&](auto part) ALWAYS_INLINE {
        if (i + part * LANES < size) f(i + part * LANES, part);
    });
}

inline float horizontal_sum(Lanes lanes) {
    for (int parts = SUM_PARTS / 2; parts > 0; parts /= 2)
        for (int i = 0; i < parts; ++i) lanes[i] = lanes[i] + lanes[i + parts];
    return horizontal_sum(lanes[0]);
}

// Sum of a row of `size` floats, a multiple of LANES.
inline float row_sum(const float* x, int size) {
    Lanes sums;
    for_each_vector(size, [&](int i, auto part) ALWAYS_INLINE {
        sums[part] = sums[part] + load(x + i);
    });
    return horizontal_sum(sums);
}

// Largest element of a row, found in the order of a sum because NaN makes the order matter.
inline float row_max(const float* x, int size) {
    Lanes maxima;
    for (Vec& part : maxima.parts) part = broadcast(-std::numeric_limits<float>::infinity());
    for_each_vector(size, [&](int i, auto part) ALWAYS_INLINE {
        maxima[part] = max(maxima[part], load(x + i));
    });
    for (int parts = SUM_PARTS / 2; parts > 0; parts /= 2)
        for (int i = 0; i < parts; ++i) maxima[i] = max(maxima[i], maxima[i + parts]);
    return horizontal_max(maxima[0]);
}

// bfloat16 is the upper half of a float32, rounded to nearest even.
inline uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline Vec round_to_bf16(Vec x) {
    const VecInt bits = (VecInt)x;
    return (Vec)((bits + 0x7fff + ((bits >> 16) & 1)) & static_cast<int32_t>(0xffff0000u));
}

}  // namespace scanline
