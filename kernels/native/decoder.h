// The decoder: schedules the slots' passes over teams of threads, whole pixels at a time.
#pragma once

#include <memory>
#include <optional>

#include "autotune.h"
#include "head.h"
#include "network.h"
#include "noise.h"
#include "pass_planner.h"

namespace scanline {

// If there are few images, a pass is filled up to this many rows with known and predicted values.
constexpr int LOOKAHEAD_ROWS = BLOCK;
// Barriers are slow when other processes compete for the cores, because each one may cost a time slice.
// If the threads of a team together slept MAX_SLEEPS times at the barriers of a call, the next
// SOLO_PIXELS pixels are computed without teams.
constexpr int MAX_SLEEPS = 3, SOLO_PIXELS = 512;

// A partition of the threads: the number of teams, and of the threads in all of them.
struct Partition {
    int teams, threads;
};

class Decoder {
public:
    Decoder(const Config& config, const Weights& weights, const Arrays& arrays)
        : config_(config), arrays_(arrays), pixels_(config.height * config.width),
          network_(config, weights),
          head_(config.categorical != 0, config.step_channels),
          states_(network_.sizes().slot_state * static_cast<size_t>(config.max_slots)),
          pool_(config.threads), step_team_(team_size(1)), prefill_team_(team_size(MAX_ROWS)) {
        for (int i = 0; i < pool_.size(); ++i) {
            buffers_.emplace_back(network_.sizes());
            teams_.push_back(std::make_unique<Team>(config, network_.sizes(), network_.format()));
        }
        seen_.resize(static_cast<size_t>(config.max_slots));
        slots_.reserve(seen_.size()), ends_.reserve(seen_.size());  // calls allocate nothing
        const auto cores = static_cast<int>(std::thread::hardware_concurrency());
        if (config.team || step_team_ == 1 || config.threads > cores) return;
        const int last = pixels_ * steps_per_pixel(config) - 1;
        step_team_ = fastest_team_size(step_team_, network_, arrays_, states_.get(), last, pool_,
                                       *teams_.front(), buffers_);
    }

    // Select the slots of the next call. Entries of -1 are skipped; with `with_twins`, each guided slot
    // is followed by its twin. Return false if a slot is out of range or repeated.
    bool collect(const int32_t* slots, int count, bool with_twins) {
        slots_.clear();
        guided_ = false;
        bool valid = true;
        const auto take = [&](int slot) {
            valid = slot >= 0 && slot < config_.max_slots && !seen_[static_cast<size_t>(slot)];
            if (!valid) return;
            seen_[static_cast<size_t>(slot)] = true;
            slots_.push_back(slot);
        };
        for (int i = 0; valid && i < count; ++i) {
            const int slot = slots[i];
            if (slot == -1) continue;
            take(slot);
            if (!valid || !with_twins || arrays_.twin[slot] == -1) continue;
            take(arrays_.twin[slot]);
            guided_ = true;
        }
        for (const int slot : slots_) seen_[static_cast<size_t>(slot)] = false;
        return valid;
    }

    // Decide up to n more pixels of each collected slot.
    void step(int n) {
        const int count = static_cast<int>(slots_.size());
        n = std::clamp(n, 0, pixels_);
        ends_.clear();
        for (const int slot : slots_)
            ends_.push_back(std::min(std::clamp(arrays_.positions[slot], 0, pixels_) + n, pixels_));
        const auto work = [&](Range slots, const Worker& worker) { draw(whole_pairs(slots), worker); };
        // Keeping a pair together may make a part one slot longer.
        const int max_slots = guided_ ? MAX_ROWS - 1 : MAX_ROWS;
        const Partition partition = partition_for(count);
        if (partition.teams < partition.threads && solo_pixels_ <= 0) {
            distribute(partition, count, max_slots, work);
            if (all_finished()) return;
            solo_pixels_ = SOLO_PIXELS;
        }
        if (solo_pixels_ > 0) solo_pixels_ -= n;
        distribute(one_thread_each(count), count, max_slots, work);
    }

    // The partition that steps `count` slots.
    Partition partition_for(int count) const {
        const int threads = pool_.size();
        if (count == 0 || count >= SHARED_ROWS * threads) return one_thread_each(count);
        return make_partition(count, (SHARED_ROWS * threads + count - 1) / count, step_team_);
    }

    // Reset each collected slot and prefill its first lengths[i] pixels. Return false if a length is
    // out of range.
    bool begin(const int32_t* lengths) {
        const int count = static_cast<int>(slots_.size());
        for (int i = 0; i < count; ++i)
            if (lengths[i] < 0 || lengths[i] > pixels_) return false;
        ends_.assign(lengths, lengths + count);
        const int threads = pool_.size();
        const bool few = count > 0 && count < threads && solo_pixels_ <= 0;
        const Partition partition =
            few ? make_partition(count, (threads + count - 1) / count, prefill_team_)
                : one_thread_each(count);
        distribute(partition, count, 1, [&](Range slots, const Worker& worker) {
            for (int i = slots.begin; i < slots.end; ++i) {
                if (worker.is_leader()) clear_state(slots_[static_cast<size_t>(i)]);
                prefill(i, worker);
            }
        });
        if (count > 0 && solo_pixels_ > 0)  // a pass of known pixels has as many barriers as one pixel
            solo_pixels_ -= (*std::max_element(lengths, lengths + count) + MAX_ROWS - 1) / MAX_ROWS;
        if (all_finished()) return true;
        solo_pixels_ = SOLO_PIXELS;
        distribute(one_thread_each(count), count, 1, [&](Range slots, const Worker& worker) {
            for (int i = slots.begin; i < slots.end; ++i) prefill(i, worker);
        });
        return true;
    }

    // Copy the states of `sources` to `targets`.
    void copy(const int32_t* sources, const int32_t* targets, int count) {
        const size_t size = network_.sizes().slot_state;
        for (int i = 0; i < count; ++i)
            std::copy_n(states_.get() + static_cast<size_t>(sources[i]) * size, size,
                        states_.get() + static_cast<size_t>(targets[i]) * size);
    }

    // Write the number of passes so far, and the totals of their rows and bytes (Network::bytes).
    void pass_counts(int64_t counts[3]) const {
        counts[0] = passes_.load(std::memory_order_relaxed);
        counts[1] = rows_.load(std::memory_order_relaxed);
        counts[2] = bytes_.load(std::memory_order_relaxed);
    }

    float* states() { return states_.get(); }
    void trace(float* parameters) { trace_ = parameters; }

private:
    // Return the configured or estimated team size for passes of `rows` rows.
    int team_size(int rows) const {
        const int limit = std::min(pool_.size(), Barrier::MAX_MEMBERS);
        return config_.team ? std::min(config_.team, limit) : network_.best_team_size(limit, rows);
    }

    Partition one_thread_each(int count) const {
        const int threads = std::clamp(count, 1, pool_.size());
        return {threads, threads};
    }

    // Form teams of `size` threads, or up to `max_size` if threads are left over, for `parts` parts.
    Partition make_partition(int parts, int size, int max_size) const {
        const int threads = pool_.size();
        size = std::min(size, max_size);
        if (size == 1) return one_thread_each(parts);
        const int teams = std::min(parts, std::max(1, threads / size));
        return {teams, std::min(threads, teams * max_size)};
    }

    // Split `count` slots into parts of at most `max_slots` and call `work(slots, worker)` on every
    // thread of the team that computes a part.
    template <typename Work>
    void distribute(const Partition& partition, int count, int max_slots, const Work& work) {
        const auto [teams, threads] = partition;
        const int rounds = (count + teams * max_slots - 1) / (teams * max_slots);
        const int parts = std::min(count, rounds * teams);
        const auto threads_of = [&](int team) {
            return Range::part(partition.threads, team, partition.teams);
        };
        for (int team = 0; team < teams; ++team)
            teams_[static_cast<size_t>(team)]->resize(threads_of(team).end - threads_of(team).begin);
        std::atomic<int> next{0};
        pool_.run(threads, [&](int i) {
            const int team = ((i + 1) * partition.teams - 1) / partition.threads;
            const Worker worker{*teams_[static_cast<size_t>(team)], i - threads_of(team).begin,
                                buffers_[static_cast<size_t>(i)]};
            // A single thread takes the next free part; a team takes fixed parts, so that its threads
            // agree.
            const bool alone = worker.team.size == 1;
            const auto take = [&](int last) {
                return alone ? next.fetch_add(1, std::memory_order_relaxed) : last + partition.teams;
            };
            for (int part = alone ? take(0) : team; part < parts; part = take(part))
                work(Range::part(count, part, parts), worker);
        });
    }

    // Adjust a range of slots so that an image and its twin are in the same part, the image's.
    Range whole_pairs(Range slots) const {
        const auto after_pair = [&](int i) {
            const bool inside = guided_ && i > 0 && i < static_cast<int>(slots_.size());
            const auto at = static_cast<size_t>(i);
            return inside && arrays_.twin[slots_[at - 1]] == slots_[at] ? i + 1 : i;
        };
        return {after_pair(slots.begin), after_pair(slots.end)};
    }

    // Return true if every collected slot has reached its end.
    bool all_finished() const {
        for (size_t i = 0; i < slots_.size(); ++i)
            if (arrays_.positions[slots_[i]] < ends_[i]) return false;
        return true;
    }

    // Draw slots until their ends. A team stops early if other processes slow its barriers down.
    void draw(Range slots, const Worker& worker) {
        const int count = slots.end - slots.begin;
        if (count == 0) return;  // its only image moved to the part before
        const int lookahead = config_.speculate ? std::max(1, LOOKAHEAD_ROWS / count) : 1;
        run(worker, slots_.data() + slots.begin, ends_.data() + slots.begin, count, true, lookahead,
            lookahead > 1 ? &worker.team.predictor : nullptr);
    }

    void clear_state(int slot) {
        const size_t size = network_.sizes().slot_state;
        std::fill_n(states_.get() + static_cast<size_t>(slot) * size, size, 0.0f);
    }

    // Prefill the known pixels of a collected slot, MAX_ROWS steps per pass. A team may stop early, as
    // in `draw`.
    void prefill(int index, const Worker& worker) {
        const auto i = static_cast<size_t>(index);
        run(worker, &slots_[i], &ends_[i], 1, false, MAX_ROWS, nullptr);
    }

    // Compute passes, planned by the team's leader, until all images reach their ends or the team's
    // threads slept too often at barriers.
    void run(const Worker& worker, const int* slots, const int* ends, int count, bool twins,
             int lookahead, ValuePredictor* predictor) {
        Pass& pass = worker.team.pass;
        std::optional<PassPlanner> planner;
        if (worker.is_leader())
            planner.emplace(config_, arrays_, slots, ends, count, twins, lookahead, predictor);
        for (bool first = true;; first = false) {
            if (planner) {
                if (!first) planner->commit(pass);
                if (worker.team.barrier.sleeps() >= MAX_SLEEPS) planner->stop_early();
                planner->plan(pass);
            }
            worker.barrier();
            if (pass.row_count == 0) break;
            if (worker.is_leader()) {
                passes_.fetch_add(1, std::memory_order_relaxed);
                rows_.fetch_add(pass.row_count, std::memory_order_relaxed);
                bytes_.fetch_add(static_cast<int64_t>(network_.bytes(pass)), std::memory_order_relaxed);
            }
            network_.run(arrays_, states_.get(), worker);
            const Range own = worker.part(pass.decision_count);
            for (int i = own.begin; i < own.end; ++i) decide(pass.decisions[i], worker.team);
            worker.barrier();
        }
        network_.commit(states_.get(), worker);
        worker.barrier();  // before the leader plans another pass
    }

    // Sample or score the values of one row from the head's parameters.
    void decide(Decision& decision, Team& team) {
        const Row row = decision.row;
        const int pixel = row.step / steps_per_pixel(config_);
        Sampling sampling{
            .uniforms = {},
            .temperature = arrays_.temperature[row.slot],
            .top_p = arrays_.top_p[row.slot],
            .guidance = arrays_.guidance[row.slot],
            .known = arrays_.known[offset(row.slot, 1) + static_cast<size_t>(pixel)] != 0};
        if (!sampling.known)
            uniforms(arrays_.seed[row.slot], arrays_.particle[row.slot],
                     row.step * config_.step_draws, config_.step_draws, sampling.uniforms);
        const float* const parameters = network_.parameters(team, decision.parameters);
        const float* const unconditional =
            decision.unconditional < 0 ? nullptr : network_.parameters(team, decision.unconditional);
        decision.bits = head_.decide(parameters, unconditional, sampling, decision.values);
        if (trace_)
            std::copy_n(parameters, config_.head_outputs,
                        trace_ + (offset(row.slot, steps_per_pixel(config_)) +
                                  static_cast<size_t>(row.step)) *
                                     static_cast<size_t>(config_.head_outputs));
    }

    // Offset of a slot in an array with `per_pixel` values per pixel.
    size_t offset(int slot, int per_pixel) const {
        return static_cast<size_t>(slot) * static_cast<size_t>(pixels_ * per_pixel);
    }

    const Config config_;
    const Arrays arrays_;
    const int pixels_;
    const Network network_;
    const Head head_;
    Buffer<float> states_;
    ThreadPool pool_;
    int step_team_;           // maximum team size for few rows
    const int prefill_team_;  // and for many rows
    std::vector<std::unique_ptr<Team>> teams_;
    std::vector<WorkerBuffers> buffers_;  // by thread
    std::vector<int> slots_, ends_;       // of the current call; ends are pixels
    std::vector<bool> seen_;
    bool guided_ = false;  // a twin is among the slots
    int solo_pixels_ = 0;  // pixels still to be computed without teams
    std::atomic<int64_t> passes_{0}, rows_{0}, bytes_{0};
    float* trace_ = nullptr;
};

}  // namespace scanline
