// Linear attention of some rows of one head, successive steps of one slot (eq. 18-20), in one pass
// over its state: the state stays in a register from step to step, with the arithmetic of one step
// at a time.
#pragma once

#include "matrix.h"

namespace scanline {

constexpr float ATTENTION_EPS = 1e-6f;
// Most rows that go over a state together: each has two sums, which have to fit the registers, without
// fused multiply-adds beside their products.
#if defined(__AVX512F__)
constexpr int TOGETHER = 8;
#elif defined(__FMA__) || defined(__aarch64__)
constexpr int TOGETHER = 6;
#else
constexpr int TOGETHER = 4;
#endif

// A head's keys and values of some steps: `stride` floats from one step to the next.
struct KeysValues {
    const float *k, *v;
    size_t stride;
};

// A head of one slot: `kv` [K, V], V padded, and z [K] behind it, padded as much.
class HeadState {
public:
    HeadState(float* kv, int keys, int padded) : kv_(kv), K_(keys), V_(padded) {}

    // Add steps whose outputs are computed already, in their order.
    void add(const KeysValues& steps, int count) const {
        float* const z = kv_ + K_ * V_;
        for (int j = 0; j < V_; j += LANES) {
            Vec sums = load(z + j);
            for (int r = 0; r < count; ++r) sums = sums + load(steps.k + r * steps.stride + j);
            store(z + j, sums);
            for (int i = 0; i < K_; ++i) {
                float* const place = kv_ + i * V_ + j;
                Vec state = load(place);
                for (int r = 0; r < count; ++r)
                    state = fma(broadcast(steps.k[r * steps.stride + i]),
                                load(steps.v + r * steps.stride + j), state);
                store(place, state);
            }
        }
    }

    // Give `put(row, column, output)` of `count` steps, at most TOGETHER, whose queries lie at `q`.
    // The sums of the first `kept` stay, one at least.
    template <typename Put>
    void attend(const float* q, const KeysValues& steps, int count, int kept, Put put) const {
        each<TOGETHER>([&](auto r) ALWAYS_INLINE {
            if (count == r + 1) attend_rows<r + 1>(q, steps, kept, put);
        });
    }

private:
    template <int R, typename Put>
    void attend_rows(const float* q, const KeysValues& steps, int kept, Put put) const {
        float* const z = kv_ + K_ * V_;
        Vec products[R] = {};
        for (int i = 0; i < V_; i += LANES) {
            Vec sums = load(z + i);
            for (int r = 0; r < R; ++r) {
                sums = sums + load(steps.k + r * steps.stride + i);
                if (r + 1 == kept) store(z + i, sums);
                products[r] = fma(load(q + r * steps.stride + i), sums, products[r]);
            }
        }
        float denominators[R];
        for (int r = 0; r < R; ++r) denominators[r] = sum(products[r]) + ATTENTION_EPS;
        int j = 0;
        if constexpr (R == 1)
            for (; j + 4 * LANES <= V_; j += 4 * LANES)
                attend_columns<R, 4>(q, steps, kept, j, denominators, put);
        if constexpr (R <= 2)
            for (; j + 2 * LANES <= V_; j += 2 * LANES)
                attend_columns<R, 2>(q, steps, kept, j, denominators, put);
        for (; j < V_; j += LANES) attend_columns<R, 1>(q, steps, kept, j, denominators, put);
    }

    template <int R, int COLUMNS, typename Put>
    void attend_columns(const float* q, const KeysValues& steps, int kept, int column,
                        const float* denominators, Put put) const {
        Vec sums[2][R][COLUMNS] = {};  // even and odd rows of the state apart: two short chains
        const auto update = [&](int i, auto parity) ALWAYS_INLINE {
            float* const place = kv_ + i * V_ + column;
            // The next head's place too: its state follows, and comes from a slower cache.
            for (int c = 0; c < COLUMNS * LANES; c += 16)
                __builtin_prefetch(place + (K_ + 1) * V_ + c, 1, 3);
            Vec state[COLUMNS];
            each<COLUMNS>([&](auto c) ALWAYS_INLINE { state[c] = load(place + c * LANES); });
            each<R>([&](auto r) ALWAYS_INLINE {
                const Vec key = broadcast(steps.k[r * steps.stride + i]);
                const Vec query = broadcast(q[r * steps.stride + i]);
                const float* const values = steps.v + r * steps.stride + column;
                each<COLUMNS>([&](auto c) ALWAYS_INLINE {
                    state[c] = fma(key, load(values + c * LANES), state[c]);
                    if (R == 1 || r + 1 == kept) store(place + c * LANES, state[c]);
                    sums[parity][r][c] = fma(query, state[c], sums[parity][r][c]);
                });
            });
        };
        using Even = std::integral_constant<int, 0>;
        using Odd = std::integral_constant<int, 1>;
        int i = 0;
        for (; i + 2 <= K_; i += 2) {
            update(i, Even{});
            update(i + 1, Odd{});
        }
        if (i < K_) update(i, Even{});
        each<R>([&](auto r) ALWAYS_INLINE {
            each<COLUMNS>([&](auto c) ALWAYS_INLINE {
                put(r, column + c * LANES, (sums[0][r][c] + sums[1][r][c]) / denominators[r]);
            });
        });
    }

    float* const kv_;
    const int K_, V_;
};

}  // namespace scanline
