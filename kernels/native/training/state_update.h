// One pass over a head's state, a matrix in the L1 cache, that updates and reads it at several
// positions.
#pragma once

#include <algorithm>

#include "load_store.h"

namespace scanline {

// Number of positions per pass over a head's state, limited by the number of registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif
template <int N>
constexpr int POSITIONS_AT_ONCE = std::clamp(REGISTERS / (4 * N), 1, 4);

// A vector of a head's features, in registers and as scalars to broadcast.
template <int N>
struct HeadVector {
    Vec vec[N];
    alignas(64) float scalars[N * LANES];

    // Copy the registers to `scalars`.
    void spill() {
        for (int n = 0; n < N; ++n) store(scalars + n * LANES, vec[n]);
    }
};

// For each position p in order: S[i] += a[p][i] x[p] for each row i of `state`, then
// read[p] = Σ_i b[p][i] S[i].
template <int N, int P>
ALWAYS_INLINE inline void update_and_read(float* state, const HeadVector<N> (&a)[P],
                                          const HeadVector<N> (&x)[P], const HeadVector<N> (&b)[P],
                                          Vec (&read)[P][N]) {
    constexpr int CHAINS = P == 1 ? 2 : 1;  // two independent chains of additions hide their latency
    Vec added[P][N], totals[CHAINS][P][N] = {};
    for (int p = 0; p < P; ++p) std::copy_n(x[p].vec, N, added[p]);
    for (int i = 0; i < N * LANES; i += CHAINS)
        for (int c = 0; c < CHAINS; ++c) {
            float* const row = state + (i + c) * N * LANES;
            Vec update[P], query[P];
            for (int p = 0; p < P; ++p)
                update[p] = broadcast(a[p].scalars[i + c]), query[p] = broadcast(b[p].scalars[i + c]);
            for (int n = 0; n < N; ++n) {
                Vec s = load(row + n * LANES);
                for (int p = 0; p < P; ++p) {
                    s = fma(update[p], added[p][n], s);
                    totals[c][p][n] = fma(query[p], s, totals[c][p][n]);
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
