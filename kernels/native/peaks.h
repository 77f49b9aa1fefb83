// Measured peak performance of this machine, for comparison in benchmarks.
#pragma once

#include <chrono>
#include <numeric>
#include <vector>

#include "matrix.h"
#include "thread_pool.h"

namespace scanline {

// Return how many times per second all threads together complete `work(thread)`. Each thread calls it
// at least once.
template <typename Work>
double calls_per_second(ThreadPool& pool, const Work& work) {
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;
    constexpr Seconds WARM{0.05}, MEASURED{0.2};
    std::vector<double> rates(static_cast<size_t>(pool.size()));
    pool.run(pool.size(), [&](int thread) {
        // Calls per second, measured over at least `minimum`.
        const auto rate = [&](Seconds minimum) {
            const auto begin = Clock::now();
            for (double calls = 1;; ++calls) {
                work(thread);
                const Seconds taken = Clock::now() - begin;
                if (taken >= minimum) return calls / taken.count();
            }
        };
        rate(WARM);
        rates[static_cast<size_t>(thread)] = rate(MEASURED);
    });
    return std::accumulate(rates.begin(), rates.end(), 0.0);
}

// Make the value of `v` unknown to the compiler, so that it does not hoist repeated products.
ALWAYS_INLINE inline void make_opaque(Vec& v) {
#if defined(__aarch64__)
    asm volatile("" : "+w"(v));
#elif defined(__AVX512F__)
    asm volatile("" : "+v"(v));
#elif defined(__SSE2__)
    asm volatile("" : "+x"(v));
#else
    asm volatile("" : "+m"(v));
#endif
}

// Peak operations/s of multiply-adds whose operands are in registers.
template <Format F>
double peak_operations(ThreadPool& pool) {
    constexpr int CHAINS = 12, REPEATS = 10'000;  // enough chains to hide an instruction's latency
#if defined(__AMX_INT8__)
    if constexpr (is_integer(F)) {
        const double calls = calls_per_second(pool, [](int) { multiply_tiles(REPEATS); });
        constexpr int PRODUCTS = F == Format::INT16 ? 4 : 1;  // byte products per integer product
        return calls * REPEATS * 4 / PRODUCTS * 2 * TILE_ROWS * static_cast<double>(TILE_BYTES);
    }
#endif
    // Operands come from memory, because with known values the compiler would merge equal chains.
    const Buffer<float> operands((2 + CHAINS) * LANES);
    Buffer<float> sums(static_cast<size_t>(pool.size()) * 64);
    const double calls = calls_per_second(pool, [&](int thread) {
        const VecInt weights = (VecInt)load(operands.get());
        Vec a = load(operands.get() + LANES);
        Vec totals[CHAINS];
        unroll<CHAINS>([&](auto i) ALWAYS_INLINE {
            totals[i] = load(operands.get() + (2 + i) * LANES);
        });
        for (int repeat = 0; repeat < REPEATS; ++repeat)
            unroll<CHAINS>([&](auto i) ALWAYS_INLINE {
                make_opaque(a);
                accumulate<F>(totals[i], weights, a);
            });
        unroll<CHAINS>([&](auto i) ALWAYS_INLINE { totals[0] = totals[0] + totals[i]; });
        store(sums.get() + thread * 64, totals[0]);  // keeps the compiler from removing the loop
    });
    return calls * REPEATS * CHAINS * LANES * 2 * DOT_WIDTH<F>;
}

// Bytes/s that all threads together read, each from its own part of `bytes` bytes.
inline double read_bandwidth(ThreadPool& pool, size_t bytes) {
    const size_t part = bytes / sizeof(float) / static_cast<size_t>(pool.size()) / 64 * 64;
    Buffer<float> memory(part * static_cast<size_t>(pool.size()));
    Buffer<float> sums(static_cast<size_t>(pool.size()) * 64);
    pool.run(pool.size(), [&](int thread) {
        std::fill_n(memory.get() + static_cast<size_t>(thread) * part, part, 1.0f);
    });
    const double calls = calls_per_second(pool, [&](int thread) {
        constexpr int CHAINS = 8;
        Vec totals[CHAINS] = {};
        const float* mine = memory.get() + static_cast<size_t>(thread) * part;
        for (size_t i = 0; i + CHAINS * LANES <= part; i += CHAINS * LANES)
            for (int c = 0; c < CHAINS; ++c) totals[c] = totals[c] + load(mine + i + c * LANES);
        for (int c = 1; c < CHAINS; ++c) totals[0] = totals[0] + totals[c];
        store(sums.get() + thread * 64, totals[0]);  // keeps the compiler from removing the loop
    });
    return calls * static_cast<double>(part * sizeof(float));
}

}  // namespace scanline
