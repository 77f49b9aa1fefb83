// Thread pool and barrier. Waiting threads spin briefly and then sleep, so that a busy decoder
// loses no time waking them and an idle decoder uses no CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>

#include "float_mode.h"

namespace scanline {

inline void cpu_relax() {
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // pauses; `yield` does nothing on cores without SMT
#endif
}

// Wait until `word` differs from `old`. Return true if the thread slept. The spin is bounded because
// the thread waited for may need this core, if another process has taken its own.
inline bool wait_until_changed(const std::atomic<uint32_t>& word, uint32_t old) {
    constexpr int SPINS = 2000;  // 30 to 100 µs, depending on the CPU
    for (int i = 0; i < SPINS; ++i) {
        if (word.load(std::memory_order_acquire) != old) return false;
        cpu_relax();
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
    return true;
}

// Barrier for the members of a team. Members arrive in groups of `GROUP`, which reduces contention
// on one cache line.
class Barrier {
public:
    static constexpr int GROUP = 8, MAX_MEMBERS = 64;

    // Set the number of members. No member may be waiting.
    void reset(int members) {
        members_ = members;
        sleeps_.store(0, std::memory_order_relaxed);
    }

    void arrive_and_wait(int index) {
        if (members_ == 1) return;
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrive(index)) {
            // Sequentially consistent, so that a thread about to sleep sees it.
            phase_.store(phase + 1);
            phase_.notify_all();
        } else {
            if (wait_until_changed(phase_, phase)) sleeps_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // Number of sleeps of all members together since `reset`.
    int sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

private:
    struct alignas(64) Counter {
        std::atomic<int> arrived{0};

        // Return true for the last of the expected arrivals, and reset the counter.
        bool arrive(int expected) {
            if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < expected) return false;
            arrived.store(0, std::memory_order_relaxed);
            return true;
        }
    };

    // Return true for the last member to arrive.
    bool arrive(int index) {
        const int group = index / GROUP, groups = (members_ + GROUP - 1) / GROUP;
        if (!groups_[group].arrive(std::min(GROUP, members_ - group * GROUP))) return false;
        return groups == 1 || all_.arrive(groups);
    }

    int members_ = 1;
    std::atomic<int> sleeps_{0};
    Counter groups_[MAX_MEMBERS / GROUP], all_;
    alignas(64) std::atomic<uint32_t> phase_{0};
};

// A fixed set of threads. `run(n, job)` calls `job(i)` once for each i < n, where the calling
// thread has index 0; the pool's other threads are not woken.
class ThreadPool {
public:
    explicit ThreadPool(int threads) {
        try {
            for (int i = 1; i < threads; ++i) {
                PoolThread& thread = threads_.emplace_back();
                thread.handle = std::thread([this, &thread, i] { loop(thread, i); });
            }
        } catch (...) {
            stop();
            throw;
        }
    }
    ~ThreadPool() { stop(); }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(threads_.size()) + 1; }

    template <typename Job>
    void run(int threads, Job job) {
        if (threads == 1) {
            job(0);
            return;
        }
        call_ = [](void* it, int i) { (*static_cast<Job*>(it))(i); };
        job_ = &job;
        running_.store(static_cast<uint32_t>(threads - 1), std::memory_order_relaxed);
        for (int i = 1; i < threads; ++i) threads_[static_cast<size_t>(i - 1)].start();
        job(0);
        for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;)
            wait_until_changed(running_, left);
    }

private:
    struct alignas(64) PoolThread {
        std::atomic<uint32_t> jobs{0};
        std::thread handle;

        void start() {
            jobs.fetch_add(1, std::memory_order_release);
            jobs.notify_one();
        }
    };

    void stop() {
        call_ = nullptr;
        for (PoolThread& thread : threads_) thread.start();
        for (PoolThread& thread : threads_)
            if (thread.handle.joinable()) thread.handle.join();  // not joinable if starting it failed
    }

    void loop(PoolThread& self, int i) {
        const DefaultFloatMode mode;
        for (uint32_t seen = 0;; ++seen) {
            wait_until_changed(self.jobs, seen);
            if (!call_) return;
            call_(job_, i);
            if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
        }
    }

    void (*call_)(void*, int) = nullptr;
    void* job_ = nullptr;
    alignas(64) std::atomic<uint32_t> running_{0};
    std::deque<PoolThread> threads_;  // a deque never moves its elements
};

}  // namespace scanline
