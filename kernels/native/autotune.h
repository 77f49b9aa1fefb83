// Measurement of the best team size for one row. It is measured rather than computed because the cost
// of synchronizing threads differs between machines.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "network.h"

namespace scanline {

// Each size is timed TRIALS times, for about TRIAL_SECONDS or at least one pass. The fastest trial
// counts, because other processes can only slow it down.
constexpr int TRIALS = 10, MAX_TRIAL_PASSES = 64;
constexpr double TRIAL_SECONDS = 1e-3;

// Return the team size of at most `max_threads` threads that computes one row, `step` of slot 0,
// fastest. Leaves the slot's state zeroed.
inline int fastest_team_size(int max_threads, const Network& network, const Arrays& arrays,
                             float* states, int step, ThreadPool& pool, Team& team,
                             std::vector<WorkerBuffers>& buffers) {
    team.pass.rows[0] = {0, step};
    team.pass.runs[0] = {0, 0, 1, 1, 0, 0};
    team.pass.row_count = team.pass.run_count = 1;
    const auto seconds = [&](int threads, int passes) {
        team.resize(threads);
        const auto began = std::chrono::steady_clock::now();
        pool.run(threads, [&](int i) {
            const Worker worker{team, i, buffers[static_cast<size_t>(i)]};
            for (int pass = 0; pass < passes; ++pass) {
                network.run(arrays, states, worker);
                worker.barrier();
            }
        });
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    std::vector<int> sizes;
    for (int threads = 1; threads < max_threads; threads *= 2) sizes.push_back(threads);
    sizes.push_back(max_threads);
    seconds(1, 1);  // warm the caches
    const double once = std::max(seconds(1, 1), 1e-9);
    const int passes = std::clamp(static_cast<int>(TRIAL_SECONDS / once), 1, MAX_TRIAL_PASSES);
    std::vector<double> fastest(sizes.size(), std::numeric_limits<double>::infinity());
    // Sizes are interleaved, so that all are measured under the same background load.
    for (int trial = 0; trial < TRIALS; ++trial)
        for (size_t i = 0; i < sizes.size(); ++i)
            fastest[i] = std::min(fastest[i], seconds(sizes[i], passes));
    std::fill_n(states, network.sizes().slot_state, 0.0f);
    const auto best = std::min_element(fastest.begin(), fastest.end());
    return sizes[static_cast<size_t>(best - fastest.begin())];
}

}  // namespace scanline
