// A head's sums, a matrix in the first cache, which some positions change and read in one pass.
#pragma once

#include <algorithm>

#include "load_store.h"

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
    constexpr int CHAINS = P == 1 ? 2 : 1;  // so that one position's additions do not wait
    Vec added[P][N], totals[CHAINS][P][N] = {};
    for (int p = 0; p < P; ++p) std::copy_n(x[p].vec, N, added[p]);
    for (int i = 0; i < rows; i += CHAINS)
        for (int c = 0; c < CHAINS; ++c) {
            float* const row = sums + (i + c) * N * LANES;
            Vec weights[P], seen[P];
            for (int p = 0; p < P; ++p)
                weights[p] = broadcast(a[p].at[i + c]), seen[p] = broadcast(b[p].at[i + c]);
            for (int n = 0; n < N; ++n) {
                Vec s = load(row + n * LANES);
                for (int p = 0; p < P; ++p) {
                    s = fma(weights[p], added[p][n], s);
                    totals[c][p][n] = fma(seen[p], s, totals[c][p][n]);
                }
                store(row + n * LANES, s);
            }
        }
    for (int p = 0; p < P; ++p)
        for (int n = 0; n < N; ++n) {
            read[p][n] = totals[0][p][n];
            for (int c = 1; c < CHAINS; ++c) read[p][n] = read[p][n] + totals[c][p][n];
        }
}

}  // namespace scanline
