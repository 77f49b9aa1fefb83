// How many threads to a row: measured, for what it costs to share one differs between machines by
// more than a network's sizes tell.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "network.h"

namespace scanline {

// A team is tried so often, for so many seconds or a pass: the best of them counts, for other
// processes only ever slow it down.
constexpr int TRIALS = 10, MOST_TRIAL_PASSES = 64;
constexpr double TRIAL_SECONDS = 1e-3;

// The team, of at most `most` threads, that takes one row in the least time: `step` of the first
// slot, whose state is as after `begin` in the end.
inline int quickest_team(int most, const Network& network, const Arrays& arrays, float* states, int step,
                         Pool& pool, Team& team, std::vector<Member>& members) {
    team.pass.rows[0] = {0, step};
    team.pass.runs[0] = {0, 0, 1, 1, 0, 0};
    team.pass.row_count = team.pass.run_count = 1;
    const auto seconds = [&](int threads, int passes) {
        team.gather(threads);
        const auto began = std::chrono::steady_clock::now();
        pool.run(threads, [&](int i) {
            const Seat seat{team, i, members[static_cast<size_t>(i)]};
            for (int pass = 0; pass < passes; ++pass) {
                network.run(arrays, states, seat);
                seat.meet();
            }
        });
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    std::vector<int> sizes;
    for (int threads = 1; threads < most; threads *= 2) sizes.push_back(threads);
    sizes.push_back(most);
    seconds(1, 1);  // the weights come into the caches
    const double once = std::max(seconds(1, 1), 1e-9);
    const int passes = std::clamp(static_cast<int>(TRIAL_SECONDS / once), 1, MOST_TRIAL_PASSES);
    std::vector<double> least(sizes.size(), std::numeric_limits<double>::infinity());
    for (int trial = 0; trial < TRIALS; ++trial)  // in turns, so that all meet the same company
        for (size_t i = 0; i < sizes.size(); ++i) least[i] = std::min(least[i], seconds(sizes[i], passes));
    std::fill_n(states, network.sizes().slot_state, 0.0f);
    return sizes[static_cast<size_t>(std::min_element(least.begin(), least.end()) - least.begin())];
}

}  // namespace scanline
