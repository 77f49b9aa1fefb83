// What this machine can do at best, for benchmarks to stand beside.
#pragma once

#include <chrono>
#include <numeric>
#include <vector>

#include "matrix.h"
#include "thread_pool.h"

namespace scanline {

// How often a second all threads together can do `work(thread)`, called again and again; at least once
// by each, however busy the machine.
template <typename Work>
double calls_per_second(Pool& pool, const Work& work) {
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;
    constexpr Seconds WARM{0.05}, MEASURED{0.2};
    std::vector<double> rates(static_cast<size_t>(pool.threads()));
    pool.run(pool.threads(), [&](int thread) {
        // Calls a second in so long a time, or in that of the first call.
        const auto rate = [&](Seconds least) {
            const auto begin = Clock::now();
            for (double calls = 1;; ++calls) {
                work(thread);
                const Seconds taken = Clock::now() - begin;
                if (taken >= least) return calls / taken.count();
            }
        };
        rate(WARM);
        rates[static_cast<size_t>(thread)] = rate(MEASURED);
    });
    return std::accumulate(rates.begin(), rates.end(), 0.0);
}

// The compiler knows nothing of `v` after this, or it would compute a product of the same once.
ALWAYS_INLINE inline void hide(Vec& v) {
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

// Operations a second of multiply-adds alone, their operands in registers.
template <Format F>
double peak_operations(Pool& pool) {
    constexpr int CHAINS = 12, REPEATS = 10'000;  // enough of them to hide the latency of one
#if defined(__AMX_INT8__)
    if constexpr (whole(F)) {
        const double calls = calls_per_second(pool, [](int) { multiply_tiles(REPEATS); });
        constexpr int PRODUCTS = F == Format::INT16 ? 4 : 1;  // of bytes in one of such numbers
        return calls * REPEATS * 4 / PRODUCTS * 2 * TILE_ROWS * static_cast<double>(TILE_BYTES);
    }
#endif
    // The compiler must know none of them, or it would compute chains that are alike only once.
    const Buffer<float> operands((2 + CHAINS) * LANES);
    Buffer<float> sums(static_cast<size_t>(pool.threads()) * 64);
    const double calls = calls_per_second(pool, [&](int thread) {
        const VecInt weights = (VecInt)load(operands.get());
        Vec a = load(operands.get() + LANES);
        Vec totals[CHAINS];
        each<CHAINS>([&](auto i) ALWAYS_INLINE {
            totals[i] = load(operands.get() + (2 + i) * LANES);
        });
        for (int repeat = 0; repeat < REPEATS; ++repeat)
            each<CHAINS>([&](auto i) ALWAYS_INLINE {
                hide(a);
                accumulate<F>(totals[i], weights, a);
            });
        each<CHAINS>([&](auto i) ALWAYS_INLINE { totals[0] = totals[0] + totals[i]; });
        store(sums.get() + thread * 64, totals[0]);  // or the compiler would leave it all out
    });
    return calls * REPEATS * CHAINS * LANES * 2 * AT_ONCE<F>;
}

// Bytes a second that all threads read, each its own part of so much memory.
inline double read_bandwidth(Pool& pool, size_t bytes) {
    const size_t part = bytes / sizeof(float) / static_cast<size_t>(pool.threads()) / 64 * 64;
    Buffer<float> memory(part * static_cast<size_t>(pool.threads()));
    Buffer<float> sums(static_cast<size_t>(pool.threads()) * 64);
    pool.run(pool.threads(), [&](int thread) {
        std::fill_n(memory.get() + static_cast<size_t>(thread) * part, part, 1.0f);
    });
    const double calls = calls_per_second(pool, [&](int thread) {
        constexpr int CHAINS = 8;
        Vec totals[CHAINS] = {};
        const float* mine = memory.get() + static_cast<size_t>(thread) * part;
        for (size_t i = 0; i + CHAINS * LANES <= part; i += CHAINS * LANES)
            for (int c = 0; c < CHAINS; ++c) totals[c] = totals[c] + load(mine + i + c * LANES);
        for (int c = 1; c < CHAINS; ++c) totals[0] = totals[0] + totals[c];
        store(sums.get() + thread * 64, totals[0]);  // or the compiler would leave it all out
    });
    return calls * static_cast<double>(part * sizeof(float));
}

}  // namespace scanline
