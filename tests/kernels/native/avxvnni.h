// Emulation of AVX-VNNI's dot products in plain C++, to test their code on CPUs with AVX2 only (Intel's
// intrinsics guide, VPDPBUSD and VPDPWSSD).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Add to each of `sums` the products of GROUP integers of `left` and `right`, modulo 2^32.
template <typename Left, typename Right>
inline __m256i add_products(__m256i sums, __m256i left, __m256i right) {
    constexpr int GROUP = 4 / sizeof(Left);
    uint32_t totals[8];
    Left a[8 * GROUP];
    Right b[8 * GROUP];
    std::memcpy(totals, &sums, sizeof sums);
    std::memcpy(a, &left, sizeof left);
    std::memcpy(b, &right, sizeof right);
    for (int i = 0; i < 8 * GROUP; ++i)
        totals[i / GROUP] += static_cast<uint32_t>(int32_t{a[i]} * int32_t{b[i]});
    std::memcpy(&sums, totals, sizeof sums);
    return sums;
}

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 add_products<uint8_t, int8_t>
#define _mm256_dpwssd_avx_epi32 add_products<int16_t, int16_t>
