// Rows of a tensor as vectors of floats, whether it holds floats or bfloat16.
#pragma once

#include "../vector.h"

namespace scanline {

// torch's rows need not lie at a multiple of a vector's size.
inline Vec load_row(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store_row(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

typedef uint16_t HalfWords __attribute__((vector_size(sizeof(Vec) / 2), may_alias));

inline Vec load_row(const uint16_t* p) {
    HalfWords words;
    std::memcpy(&words, p, sizeof words);
    return (Vec)(__builtin_convertvector(words, VecInt) << 16);
}
inline void store_row(uint16_t* p, Vec v) {
    const VecInt upper = ((VecInt)round_to_bf16(v) >> 16) & 0xffff;
    const HalfWords words = __builtin_convertvector(upper, HalfWords);
    std::memcpy(p, &words, sizeof words);
}

}  // namespace scanline
