// Linear attention (eq. 18-20) of one head of one slot over several consecutive steps, in one pass over
// its state. The state stays in registers from step to step, and the arithmetic equals that of single
// steps.
#pragma once

#include "functions.h"
#include "matrix.h"

namespace scanline {

// Maximum number of steps per pass over a state. Each step needs two sums in registers and, without
// FMA, their products too.
#if defined(__AVX512F__)
constexpr int MAX_STEPS_AT_ONCE = 8;
#elif defined(__FMA__) || defined(__aarch64__)
constexpr int MAX_STEPS_AT_ONCE = 6;
#else
constexpr int MAX_STEPS_AT_ONCE = 4;
#endif

// A head's keys and values of consecutive steps, `stride` floats apart.
struct KeysValues {
    const float *k, *v;
    size_t stride;
};

// State of one head of one slot: `kv` [K, V], followed by z [K]. V and z are padded to whole vectors.
class HeadState {
public:
    HeadState(float* kv, int keys, int padded) : kv_(kv), K_(keys), V_(padded) {}

    // Add the keys and values of steps whose outputs are already computed, in order.
    void add(const KeysValues& steps, int count) const {
        float* const z = kv_ + K_ * V_;
        for (int j = 0; j < V_; j += LANES) {
            Vec sums = load(z + j);
            for (int r = 0; r < count; ++r) sums = sums + load(steps.k + r * steps.stride + j);
            store(z + j, sums);
            for (int i = 0; i < K_; ++i) {
                float* const address = kv_ + i * V_ + j;
                Vec state = load(address);
                for (int r = 0; r < count; ++r)
                    state = fma(broadcast(steps.k[r * steps.stride + i]),
                                load(steps.v + r * steps.stride + j), state);
                store(address, state);
            }
        }
    }

    // Compute the outputs of `count` ≤ MAX_STEPS_AT_ONCE steps whose queries are at `q`, and call
    // `emit(row, column, output)` with each vector. Only the first `confirmed` ≥ 1 steps update the
    // state.
    template <typename Emit>
    void attend(const float* q, const KeysValues& steps, int count, int confirmed, Emit emit) const {
        unroll<MAX_STEPS_AT_ONCE>([&](auto r) ALWAYS_INLINE {
            if (count == r + 1) attend_rows<r + 1>(q, steps, confirmed, emit);
        });
    }

private:
    template <int R, typename Emit>
    void attend_rows(const float* q, const KeysValues& steps, int confirmed, Emit emit) const {
        float* const z = kv_ + K_ * V_;
        Lanes products[R];
        for_each_vector(V_, [&](int i, auto part) ALWAYS_INLINE {
            Vec sums = load(z + i);
            for (int r = 0; r < R; ++r) {
                sums = sums + load(steps.k + r * steps.stride + i);
                if (r + 1 == confirmed) store(z + i, sums);
                products[r][part] = fma(load(q + r * steps.stride + i), sums, products[r][part]);
            }
        });
        float denominators[R];
        for (int r = 0; r < R; ++r) denominators[r] = horizontal_sum(products[r]) + ATTENTION_EPS;
        int j = 0;
        if constexpr (R == 1)
            for (; j + 4 * LANES <= V_; j += 4 * LANES)
                attend_columns<R, 4>(q, steps, confirmed, j, denominators, emit);
        if constexpr (R <= 2)
            for (; j + 2 * LANES <= V_; j += 2 * LANES)
                attend_columns<R, 2>(q, steps, confirmed, j, denominators, emit);
        for (; j < V_; j += LANES) attend_columns<R, 1>(q, steps, confirmed, j, denominators, emit);
    }

    template <int R, int COLUMNS, typename Emit>
    void attend_columns(const float* q, const KeysValues& steps, int confirmed, int column,
                        const float* denominators, Emit emit) const {
        // Separate sums for even and odd rows of the state shorten the dependency chains.
        Vec sums[2][R][COLUMNS] = {};
        const auto update = [&](int i, auto parity) ALWAYS_INLINE {
            float* const address = kv_ + i * V_ + column;
            // Prefetch the next head's state, which follows this one and is in a slower cache.
            for (int c = 0; c < COLUMNS * LANES; c += 16)
                __builtin_prefetch(address + (K_ + 1) * V_ + c, 1, 3);
            Vec state[COLUMNS];
            unroll<COLUMNS>([&](auto c) ALWAYS_INLINE { state[c] = load(address + c * LANES); });
            unroll<R>([&](auto r) ALWAYS_INLINE {
                const Vec key = broadcast(steps.k[r * steps.stride + i]);
                const Vec query = broadcast(q[r * steps.stride + i]);
                const float* const values = steps.v + r * steps.stride + column;
                unroll<COLUMNS>([&](auto c) ALWAYS_INLINE {
                    state[c] = fma(key, load(values + c * LANES), state[c]);
                    if (R == 1 || r + 1 == confirmed) store(address + c * LANES, state[c]);
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
        unroll<R>([&](auto r) ALWAYS_INLINE {
            unroll<COLUMNS>([&](auto c) ALWAYS_INLINE {
                emit(r, column + c * LANES, (sums[0][r][c] + sums[1][r][c]) / denominators[r]);
            });
        });
    }

    float* const kv_;
    const int K_, V_;
};

}  // namespace scanline
