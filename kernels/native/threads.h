// A few threads that stay: they spin briefly between jobs, then sleep, so that a busy decoder
// loses no time to waking them and an idle one burns no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace scanline {

inline void relax() {
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until `word` is no longer `old`; true where that took a sleep. The spin is bounded: where
// another process has taken the partner's core, sleeping gives it ours.
inline bool wait_change(const std::atomic<uint32_t>& word, uint32_t old) {
    constexpr int SPINS = 2000;  // some 30 microseconds
    for (int i = 0; i < SPINS; ++i) {
        if (word.load(std::memory_order_acquire) != old) return false;
        relax();
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
    return true;
}

// Where the members of a team meet.
class Barrier {
public:
    explicit Barrier(int members) : members_(static_cast<uint32_t>(members)) {}

    void meet() {
        if (members_ == 1) return;
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            phase_.notify_all();
        } else {
            if (wait_change(phase_, phase)) slept_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // How often a member had to sleep.
    int sleeps() const { return slept_.load(std::memory_order_relaxed); }
    void forget_sleeps() { slept_.store(0, std::memory_order_relaxed); }

private:
    const uint32_t members_;
    std::atomic<int> slept_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

// `run(job)` calls `job(i)` once on each thread i; the caller's is number 0.
class Pool {
public:
    explicit Pool(int threads) {
        try {
            for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
        } catch (...) {
            stop();
            throw;
        }
    }
    ~Pool() { stop(); }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    template <typename Job>
    void run(Job job) {
        if (workers_.empty()) {
            job(0);
            return;
        }
        call_ = [](void* it, int i) { (*static_cast<Job*>(it))(i); };
        job_ = &job;
        running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
        start();
        job(0);
        for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;)
            wait_change(running_, left);
    }

private:
    void start() {
        jobs_.fetch_add(1, std::memory_order_release);
        jobs_.notify_all();
    }

    void stop() {
        call_ = nullptr;
        start();
        for (std::thread& worker : workers_) worker.join();
    }

    void work(int i) {
        for (uint32_t seen = 0;; ++seen) {
            wait_change(jobs_, seen);
            if (!call_) return;
            call_(job_, i);
            if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
        }
    }

    void (*call_)(void*, int) = nullptr;
    void* job_ = nullptr;
    alignas(64) std::atomic<uint32_t> jobs_{0};
    alignas(64) std::atomic<uint32_t> running_{0};
    std::vector<std::thread> workers_;
};

}  // namespace scanline
