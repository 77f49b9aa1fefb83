// `Vec`, a float32 SIMD vector as wide as the CPU's registers; aligned buffers; and elementwise
// functions. The compiler's -m flags choose the instruction set (see kernels/native/cpu.py).
//
// Everything is compiled with -ffp-contract=off, so only explicit `fma` calls are fused. Results
// therefore do not depend on what the compiler inlines where.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
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
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
#endif
typedef int32_t VecInt __attribute__((vector_size(sizeof(Vec)), may_alias));

constexpr int LANES = static_cast<int>(sizeof(Vec) / sizeof(float));

constexpr int round_up(int size, int multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

// `load` and `store` require 64-byte alignment and memory padded to whole vectors.
inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline Vec select(VecInt mask, Vec yes, Vec no) {
    return (Vec)((mask & (VecInt)yes) | (~mask & (VecInt)no));
}
#if defined(__AVX512F__)
// Masked intrinsics, because some unmasked ones and casts trigger uninitialised-value warnings in
// gcc 12's own headers (PR 105593).
inline Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(0xffff, a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(0xffff, a, b); }
inline float horizontal_sum(Vec v) {
    __m256 halves[2];
    std::memcpy(halves, &v, sizeof v);
    const __m256 half = halves[0] + halves[1];
    const __m128 quarters = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
    const __m128 pairs = quarters + _mm_movehl_ps(quarters, quarters);
    return pairs[0] + pairs[1];
}
inline float horizontal_max(Vec v) {
    __m256 halves[2];
    std::memcpy(halves, &v, sizeof v);
    const __m256 half = _mm256_max_ps(halves[0], halves[1]);
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return pair[0] > pair[1] ? pair[0] : pair[1];
}
#else
#if defined(__AVX2__) && defined(__FMA__)
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
#else
inline Vec max(Vec a, Vec b) { return select((VecInt)(a > b), a, b); }
inline Vec min(Vec a, Vec b) { return select((VecInt)(a < b), a, b); }
#endif
inline float horizontal_sum(Vec v) {
    float lanes[LANES];
    std::memcpy(lanes, &v, sizeof v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}
inline float horizontal_max(Vec v) {
    float lanes[LANES];
    std::memcpy(lanes, &v, sizeof v);
    float result = lanes[0];
    for (int i = 1; i < LANES; ++i) result = lanes[i] > result ? lanes[i] : result;
    return result;
}
#endif
inline Vec absolute(Vec x) { return (Vec)((VecInt)x & 0x7fffffff); }

// e^x to about 1 ulp: 0 below the smallest normal number, clamped to e^88.37 above.
inline Vec exp(Vec x) {
    const VecInt tiny = (VecInt)(x < -87.33f);
    x = min(max(x, broadcast(-87.33f)), broadcast(88.37f));
    // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits.
    const Vec shift = broadcast(12582912.0f);
    const Vec shifted = fma(x, broadcast(1.44269504088896341f), shift);
    const Vec n = shifted - shift;
    Vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);  // Cephes expf
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    const VecInt scaled = (VecInt)p + ((VecInt)shifted << 23);
    return (Vec)(scaled & ~tiny);
}

// ln x to about 1 ulp, for normal x > 0.
inline Vec log(Vec x) {
    const VecInt root_half = VecInt{} + 0x3f3504f3;
    const VecInt e = ((VecInt)x - root_half) >> 23;
    const Vec m = (Vec)((VecInt)x - (e << 23)) - 1.0f;  // mantissa in [√½, √2), less 1
    const Vec exponent = __builtin_convertvector(e, Vec);
    const Vec z = m * m;
    Vec p = broadcast(7.0376836292e-2f);  // Cephes logf
    p = fma(p, m, broadcast(-1.1514610310e-1f));
    p = fma(p, m, broadcast(1.1676998740e-1f));
    p = fma(p, m, broadcast(-1.2420140846e-1f));
    p = fma(p, m, broadcast(1.4249322787e-1f));
    p = fma(p, m, broadcast(-1.6668057665e-1f));
    p = fma(p, m, broadcast(2.0000714765e-1f));
    p = fma(p, m, broadcast(-2.4999993993e-1f));
    p = fma(p, m, broadcast(3.3333331174e-1f));
    Vec y = p * m * z;
    y = fma(exponent, broadcast(-2.12194440e-4f), y);
    y = fma(z, broadcast(-0.5f), y);
    return fma(exponent, broadcast(0.693359375f), m + y);
}

// ln(1 + x) for 0 ≤ x ≤ 1, accurate even if 1 + x rounds to 1 (Kahan's correction).
inline Vec log1p(Vec x) {
    const Vec u = x + 1.0f;
    const Vec rest = u - 1.0f;
    const VecInt lost = (VecInt)(rest == 0.0f);
    return select(lost, x, log(u) * x / select(lost, broadcast(1.0f), rest));
}

// ln(1 + e^x)
inline Vec softplus(Vec x) { return max(x, Vec{}) + log1p(exp(-absolute(x))); }

inline Vec tanh(Vec x) {
    const Vec e = exp(absolute(x) * -2.0f);
    const Vec magnitude = (1.0f - e) / (1.0f + e);
    return (Vec)((VecInt)magnitude | ((VecInt)x & INT32_MIN));
}

// erf to about 2 ulp: odd rational function on [-4, 4] (Eigen), ±1 outside.
inline Vec erf(Vec x) {
    x = min(max(x, broadcast(-4.0f)), broadcast(4.0f));
    const Vec z = x * x;
    Vec p = broadcast(-2.72614225801306e-10f);
    p = fma(p, z, broadcast(2.77068142495902e-08f));
    p = fma(p, z, broadcast(-2.10102402082508e-06f));
    p = fma(p, z, broadcast(-5.69250639462346e-05f));
    p = fma(p, z, broadcast(-7.34990630326855e-04f));
    p = fma(p, z, broadcast(-2.95459980854025e-03f));
    p = fma(p, z, broadcast(-1.60960333262415e-02f));
    Vec q = broadcast(-1.45660718464996e-05f);
    q = fma(q, z, broadcast(-2.13374055278905e-04f));
    q = fma(q, z, broadcast(-1.68282697438203e-03f));
    q = fma(q, z, broadcast(-7.37332916720468e-03f));
    q = fma(q, z, broadcast(-1.42647390514189e-02f));
    return x * p / q;
}

inline Vec gelu(Vec x) { return 0.5f * x * (1.0f + erf(x * 0.707106781186547524f)); }
inline Vec relu(Vec x) { return max(x, Vec{}); }

// φ(x) = elu(x) + 1 (eq. 7)
inline Vec feature_map(Vec x) { return max(x, Vec{}) + exp(min(x, Vec{})); }

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

// Zeroed memory aligned to 64 bytes. Large buffers use huge pages if the system has them, because
// streaming weights and states through small pages is limited by address translation.
template <typename T>
class Buffer {
public:
    explicit Buffer(size_t count) {
        constexpr size_t HUGE_PAGE = size_t{2} << 20;
        const size_t bytes = (count ? count : 1) * sizeof(T);
        const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
        memory_ = std::calloc(bytes + alignment, 1);  // untouched pages take no memory
        if (!memory_) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(memory_);
        data_ = reinterpret_cast<T*>((address + alignment - 1) / alignment * alignment);
#if defined(MADV_HUGEPAGE)
        if (alignment == HUGE_PAGE) madvise(data_, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    }
    Buffer(Buffer&& other) noexcept : memory_(other.memory_), data_(other.data_) {
        other.memory_ = nullptr;
        other.data_ = nullptr;
    }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~Buffer() { std::free(memory_); }

    T* get() { return data_; }
    const T* get() const { return data_; }

private:
    void* memory_ = nullptr;
    T* data_ = nullptr;
};

}  // namespace scanline
