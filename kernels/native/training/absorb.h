// A head's sums, a matrix in the first cache, which some positions change and read in one pass over it.
#pragma once

#include <algorithm>

#include "elements.h"

namespace scanline {

// How many positions pass over a head's sums together: as many as the registers hold.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif
template <int N>
constexpr int TOGETHER = std::clamp(REGISTERS / (4 * N), 1, 4);

// A vector of a head both as registers and as numbers to broadcast.
template <int N>
struct Numbers {
    Vec vec[N];
    alignas(64) float at[N * LANES];

    void keep() {
        for (int n = 0; n < N; ++n) store(at + n * LANES, vec[n]);
    }
};

// For each p in turn: S[i] += a[p][i] x[p] for each row of `sums`, then read[p] = Σ_i b[p][i] S[i].
template <int N, int P>
ALWAYS_INLINE inline void absorb(float* sums, int rows, const Numbers<N> (&a)[P],
                                 const Numbers<N> (&x)[P], const Numbers<N> (&b)[P],
                                 Vec (&read)[P][N]) {
    constexpr int CHAINS = P == 1 ? 2 : 1;  // of additions, two at least
    Vec added[P][N], totals[CHAINS][P][N] = {};
    for (int p = 0; p < P; ++p) std::copy_n(x[p].vec, N, added[p]);
    for (int i = 0; i < rows; i += CHAINS)
        for (int c = 0; c < CHAINS; ++c) {
            float* const row = sums + (i + c) * N * LANES;
            Vec s[N];
            for (int n = 0; n < N; ++n) s[n] = load(row + n * LANES);
            for (int p = 0; p < P; ++p) {
                const Vec weight = broadcast(a[p].at[i + c]), seen = broadcast(b[p].at[i + c]);
                for (int n = 0; n < N; ++n) {
                    s[n] = fma(weight, added[p][n], s[n]);
                    totals[c][p][n] = fma(seen, s[n], totals[c][p][n]);
                }
            }
            for (int n = 0; n < N; ++n) store(row + n * LANES, s[n]);
        }
    for (int p = 0; p < P; ++p)
        for (int n = 0; n < N; ++n) {
            read[p][n] = totals[0][p][n];
            for (int c = 1; c < CHAINS; ++c) read[p][n] = read[p][n] + totals[c][p][n];
        }
}

template <int N>
inline float dot(const Vec (&a)[N], const Vec (&b)[N]) {
    Vec total = a[0] * b[0];
    for (int n = 1; n < N; ++n) total = fma(a[n], b[n], total);
    return sum(total);
}

}  // namespace scanline
