// Loads and stores of tensors' elements, float32 or bfloat16, as vectors of floats.
#pragma once

#include "../functions.h"

namespace scanline {

// Unaligned, because PyTorch's rows need not be aligned to a vector's size.
inline Vec load_row(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store_row(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

typedef uint16_t Bf16Vec __attribute__((vector_size(sizeof(Vec) / 2), may_alias));

inline Vec load_row(const uint16_t* p) {
    Bf16Vec words;
    std::memcpy(&words, p, sizeof words);
#if defined(__AVX512F__)  // gcc would convert in two halves through memory
    return (Vec)((VecInt)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)words) << 16);
#else
    return (Vec)(__builtin_convertvector(words, VecInt) << 16);
#endif
}
inline void store_row(uint16_t* p, Vec v) {
#if defined(__AVX512BF16__)
    const auto words = (__m256i)_mm512_cvtneps_pbh(v);
#elif defined(__AVX512F__)
    const VecInt upper = (VecInt)round_to_bf16(v) >> 16;
    const __m256i words = _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)upper);
#else
    const VecInt upper = ((VecInt)round_to_bf16(v) >> 16) & 0xffff;
    const Bf16Vec words = __builtin_convertvector(upper, Bf16Vec);
#endif
    std::memcpy(p, &words, sizeof words);
}

}  // namespace scanline
