// A few threads that stay: they spin briefly between jobs, then sleep, so that a busy decoder
// loses no time to waking them and an idle one burns no CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace scanline {

inline void relax() {
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // a pause, which `yield` is not on cores of one thread
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

// Where the members of a team meet. They arrive by groups, so that many do not queue for one word.
class Barrier {
public:
    static constexpr int GROUP = 8, MAX_MEMBERS = 64;

    // While nobody is in it: so many members meet from now on.
    void gather(int members) {
        members_ = members;
        slept_.store(0, std::memory_order_relaxed);
    }

    void meet(int index) {
        if (members_ == 1) return;
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrive(index)) {
            phase_.store(phase + 1);  // sequentially consistent: who is about to sleep sees it
            phase_.notify_all();
        } else {
            if (wait_change(phase_, phase)) slept_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // How often a member had to sleep, since they were gathered.
    int sleeps() const { return slept_.load(std::memory_order_relaxed); }

private:
    struct alignas(64) Count {
        std::atomic<int> arrived{0};

        // True for the last of so many.
        bool last(int of) {
            if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < of) return false;
            arrived.store(0, std::memory_order_relaxed);
            return true;
        }
    };

    // True for the last of all.
    bool arrive(int index) {
        const int group = index / GROUP, groups = (members_ + GROUP - 1) / GROUP;
        if (!groups_[group].last(std::min(GROUP, members_ - group * GROUP))) return false;
        return groups == 1 || all_.last(groups);
    }

    int members_ = 1;
    std::atomic<int> slept_{0};
    Count groups_[MAX_MEMBERS / GROUP], all_;
    alignas(64) std::atomic<uint32_t> phase_{0};
};

// `run(n, job)` calls `job(i)` once on each thread i of the first n; the caller's is number 0. The
// others sleep on.
class Pool {
public:
    explicit Pool(int threads) {
        try {
            for (int i = 1; i < threads; ++i) {
                Worker& worker = workers_.emplace_back();
                worker.thread = std::thread([this, &worker, i] { work(worker, i); });
            }
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
    void run(int threads, Job job) {
        if (threads == 1) {
            job(0);
            return;
        }
        call_ = [](void* it, int i) { (*static_cast<Job*>(it))(i); };
        job_ = &job;
        running_.store(static_cast<uint32_t>(threads - 1), std::memory_order_relaxed);
        for (int i = 1; i < threads; ++i) workers_[static_cast<size_t>(i - 1)].start();
        job(0);
        for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;)
            wait_change(running_, left);
    }

private:
    struct alignas(64) Worker {
        std::atomic<uint32_t> jobs{0};
        std::thread thread;

        void start() {
            jobs.fetch_add(1, std::memory_order_release);
            jobs.notify_one();
        }
    };

    void stop() {
        call_ = nullptr;
        for (Worker& worker : workers_) worker.start();
        for (Worker& worker : workers_)
            if (worker.thread.joinable()) worker.thread.join();  // or it was never begun
    }

    void work(Worker& self, int i) {
        for (uint32_t seen = 0;; ++seen) {
            wait_change(self.jobs, seen);
            if (!call_) return;
            call_(job_, i);
            if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
        }
    }

    void (*call_)(void*, int) = nullptr;
    void* job_ = nullptr;
    alignas(64) std::atomic<uint32_t> running_{0};
    std::deque<Worker> workers_;  // which never moves them
};

}  // namespace scanline
