// Many images in flight, whole pixels at a time: the loop over slots, threads and passes.
#pragma once

#include <memory>
#include <optional>

#include "pass_planner.h"
#include "head.h"
#include "network.h"
#include "noise.h"
#include "autotune.h"

namespace scanline {

// Rows that a pass is filled up to where images are too few to fill it: known values, and guesses.
constexpr int AHEAD_ROWS = BLOCK;
// Threads that meet this often lose whole time slices where other processes want the cores. So
// many meetings that outlast their spin tell so, and the next pixels run without meetings.
constexpr int TOO_MANY_SLEEPS = 3, ALONE_PIXELS = 512;

class Decoder {
public:
    Decoder(const Config& config, const Weights& weights, const Arrays& arrays)
        : config_(config), arrays_(arrays), pixels_(config.height * config.width),
          network_(config, weights),
          head_(config.categorical != 0, config.step_channels, weights.head_tables),
          states_(network_.sizes().slot_state * static_cast<size_t>(config.max_slots)),
          pool_(config.threads), drawing_team_(team_for(1)), prefill_team_(team_for(MAX_ROWS)) {
        for (int i = 0; i < pool_.threads(); ++i) {
            members_.emplace_back(network_.sizes());
            teams_.push_back(std::make_unique<Team>(config, network_.sizes(), network_.format()));
        }
        seen_.resize(static_cast<size_t>(config.max_slots));
        slots_.reserve(seen_.size()), ends_.reserve(seen_.size());  // calls take no memory
        const auto cores = static_cast<int>(std::thread::hardware_concurrency());
        if (config.team || drawing_team_ == 1 || config.threads > cores) return;
        const int last = pixels_ * steps_per_pixel(config) - 1;
        drawing_team_ = quickest_team(drawing_team_, network_, arrays_, states_.get(), last, pool_,
                                      *teams_.front(), members_);
    }

    // The slots given, less -1, and `with_twins` each guided one's twin right after it. Returns
    // false where one is out of range or comes twice.
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

    // Up to n more pixels of each collected slot.
    void step(int n) {
        const int count = static_cast<int>(slots_.size());
        n = std::clamp(n, 0, pixels_);
        ends_.clear();
        for (const int slot : slots_)
            ends_.push_back(std::min(std::clamp(arrays_.positions[slot], 0, pixels_) + n, pixels_));
        const auto work = [&](Range slots, const Seat& seat) { draw(whole_pairs(slots), seat); };
        // A pair that would be torn makes its part a slot longer.
        const int most = guided_ ? MAX_ROWS - 1 : MAX_ROWS;
        const Crews crews = crews_for(count);
        if (crews.teams < crews.threads && alone_pixels_ <= 0) {
            spread(crews, count, most, work);
            if (arrived()) return;
            alone_pixels_ = ALONE_PIXELS;
        }
        if (alone_pixels_ > 0) alone_pixels_ -= n;
        spread(each_alone(count), count, most, work);
    }

    // How many teams draw so many slots, and of how many threads they are in all.
    struct Crews {
        int teams, threads;
    };
    Crews crews_for(int count) const {
        const int threads = pool_.threads();
        if (count == 0 || count >= SHARED_ROWS * threads) return each_alone(count);
        return crews_of(count, (SHARED_ROWS * threads + count - 1) / count, drawing_team_);
    }

    // Each collected slot from nothing, with its first lengths[i] pixels. Returns false where a
    // length is out of range.
    bool begin(const int32_t* lengths) {
        const int count = static_cast<int>(slots_.size());
        for (int i = 0; i < count; ++i)
            if (lengths[i] < 0 || lengths[i] > pixels_) return false;
        ends_.assign(lengths, lengths + count);
        const int threads = pool_.threads();
        const bool few = count > 0 && count < threads && alone_pixels_ <= 0;
        const Crews crews = few ? crews_of(count, (threads + count - 1) / count, prefill_team_)
                                : each_alone(count);
        spread(crews, count, 1, [&](Range slots, const Seat& seat) {
            for (int i = slots.begin; i < slots.end; ++i) {
                if (seat.leads()) clear(slots_[static_cast<size_t>(i)]);
                prefill(i, seat);
            }
        });
        if (count > 0 && alone_pixels_ > 0)  // a pass of known pixels has as many meetings as one pixel
            alone_pixels_ -= (*std::max_element(lengths, lengths + count) + MAX_ROWS - 1) / MAX_ROWS;
        if (arrived()) return true;
        alone_pixels_ = ALONE_PIXELS;
        spread(each_alone(count), count, 1, [&](Range slots, const Seat& seat) {
            for (int i = slots.begin; i < slots.end; ++i) prefill(i, seat);
        });
        return true;
    }

    void copy(const int32_t* sources, const int32_t* targets, int count) {
        const size_t size = network_.sizes().slot_state;
        for (int i = 0; i < count; ++i)
            std::copy_n(states_.get() + static_cast<size_t>(sources[i]) * size, size,
                        states_.get() + static_cast<size_t>(targets[i]) * size);
    }

    // Passes so far, and the rows that they had.
    void pass_counts(int64_t counts[2]) const {
        counts[0] = passes_.load(std::memory_order_relaxed);
        counts[1] = rows_.load(std::memory_order_relaxed);
    }

    float* states() { return states_.get(); }
    const Sizes& sizes() const { return network_.sizes(); }
    void trace(float* parameters) { trace_ = parameters; }

private:
    int team_for(int rows) const {
        const int most = std::min(pool_.threads(), Barrier::MAX_MEMBERS);
        return config_.team ? std::min(config_.team, most) : network_.best_team(most, rows);
    }

    Crews each_alone(int count) const {
        const int threads = std::clamp(count, 1, pool_.threads());
        return {threads, threads};
    }

    // Teams of so many members, up to `most` where threads are left over, for so many parts.
    Crews crews_of(int parts, int members, int most) const {
        const int threads = pool_.threads();
        members = std::min(members, most);
        if (members == 1) return each_alone(parts);
        const int teams = std::min(parts, std::max(1, threads / members));
        return {teams, std::min(threads, teams * most)};
    }

    // Have `work(range of slots, seat)` done by these teams, for parts of at most `most` slots.
    template <typename Work>
    void spread(const Crews& crews, int count, int most, const Work& work) {
        const auto [teams, threads] = crews;
        const int rounds = (count + teams * most - 1) / (teams * most);
        const int parts = std::min(count, rounds * teams);
        const auto members = [&](int team) { return Range::share(crews.threads, team, crews.teams); };
        for (int team = 0; team < teams; ++team)
            teams_[static_cast<size_t>(team)]->gather(members(team).end - members(team).begin);
        std::atomic<int> next{0};
        pool_.run(threads, [&](int i) {
            const int mine = ((i + 1) * crews.teams - 1) / crews.threads;
            const Seat seat{*teams_[static_cast<size_t>(mine)], i - members(mine).begin,
                            members_[static_cast<size_t>(i)]};
            // Who is alone takes whatever is next; the members of a team have to agree on it.
            const bool alone = seat.team.members == 1;
            const auto take = [&](int last) {
                return alone ? next.fetch_add(1, std::memory_order_relaxed) : last + crews.teams;
            };
            for (int part = alone ? take(0) : mine; part < parts; part = take(part))
                work(Range::share(count, part, parts), seat);
        });
    }

    // An image and its twin stay together, with whoever has the image.
    Range whole_pairs(Range slots) const {
        const auto after_pair = [&](int i) {
            const bool inside = guided_ && i > 0 && i < static_cast<int>(slots_.size());
            const auto at = static_cast<size_t>(i);
            return inside && arrays_.twin[slots_[at - 1]] == slots_[at] ? i + 1 : i;
        };
        return {after_pair(slots.begin), after_pair(slots.end)};
    }

    bool arrived() const {
        for (size_t i = 0; i < slots_.size(); ++i)
            if (arrays_.positions[slots_[i]] < ends_[i]) return false;
        return true;
    }

    // Draw these slots up to their ends; a team that is held up by other processes stops before.
    void draw(Range slots, const Seat& seat) {
        const int count = slots.end - slots.begin;
        if (count == 0) return;  // its only image went with the part before
        const int ahead = config_.speculate ? std::max(1, AHEAD_ROWS / count) : 1;
        run(seat, slots_.data() + slots.begin, ends_.data() + slots.begin, count, true, ahead,
            ahead > 1 ? &seat.team.guesses : nullptr);
    }

    void clear(int slot) {
        const size_t size = network_.sizes().slot_state;
        std::fill_n(states_.get() + static_cast<size_t>(slot) * size, size, 0.0f);
    }

    // Take the known pixels of a collected slot in, as many as a pass may have; a team stops as above.
    void prefill(int index, const Seat& seat) {
        const auto i = static_cast<size_t>(index);
        run(seat, &slots_[i], &ends_[i], 1, false, MAX_ROWS, nullptr);
    }

    // Pass after pass of a drawing, which the team's leader has, until the images are at their ends or
    // too many meetings were slept through.
    void run(const Seat& seat, const int* slots, const int* ends, int count, bool twins, int ahead,
             ValuePredictor* guesses) {
        Pass& pass = seat.team.pass;
        std::optional<PassPlanner> drawing;
        if (seat.leads())
            drawing.emplace(config_, arrays_, slots, ends, count, twins, ahead, guesses);
        for (bool first = true;; first = false) {
            if (drawing) {
                if (!first) drawing->settle(pass);
                if (seat.team.barrier.sleeps() >= TOO_MANY_SLEEPS) drawing->stop();
                drawing->plan(pass);
            }
            seat.meet();
            if (pass.row_count == 0) break;
            if (seat.leads()) {
                passes_.fetch_add(1, std::memory_order_relaxed);
                rows_.fetch_add(pass.row_count, std::memory_order_relaxed);
            }
            network_.run(arrays_, states_.get(), seat);
            const Range mine = seat.share(pass.decision_count);
            for (int i = mine.begin; i < mine.end; ++i) decide(pass.decisions[i], seat.team);
            seat.meet();
        }
        network_.settle(states_.get(), seat);
        seat.meet();  // before the leader plans another pass
    }

    void decide(Decision& decision, Team& team) {
        const Row row = decision.row;
        const int pixel = row.step / steps_per_pixel(config_);
        Draw draw{{},
                  arrays_.temperature[row.slot],
                  arrays_.top_p[row.slot],
                  arrays_.guidance[row.slot],
                  arrays_.known[at(row.slot, 1) + static_cast<size_t>(pixel)] != 0};
        if (!draw.known)
            uniforms(arrays_.seed[row.slot], arrays_.particle[row.slot],
                     row.step * config_.step_draws, config_.step_draws, draw.uniforms);
        const float* const parameters = network_.parameters(team, decision.parameters);
        const float* const unconditional =
            decision.unconditional < 0 ? nullptr : network_.parameters(team, decision.unconditional);
        decision.bits = head_.decide(parameters, unconditional, draw, decision.values);
        if (trace_)
            std::copy_n(parameters, config_.head_outputs,
                        trace_ + (at(row.slot, steps_per_pixel(config_)) +
                                  static_cast<size_t>(row.step)) *
                                     static_cast<size_t>(config_.head_outputs));
    }

    // Where a slot begins in an array of `each` values a pixel.
    size_t at(int slot, int each) const {
        return static_cast<size_t>(slot) * static_cast<size_t>(pixels_ * each);
    }

    const Config config_;
    const Arrays arrays_;
    const int pixels_;
    const Network network_;
    const Head head_;
    Buffer<float> states_;
    Pool pool_;
    int drawing_team_;  // how many threads pay off for few rows,
    const int prefill_team_;  // and for many
    std::vector<std::unique_ptr<Team>> teams_;
    std::vector<Member> members_;  // by thread
    std::vector<int> slots_, ends_;  // of the call at hand: ends are pixels
    std::vector<bool> seen_;
    bool guided_ = false;  // whether a twin is among the slots
    int alone_pixels_ = 0;
    std::atomic<int64_t> passes_{0}, rows_{0};
    float* trace_ = nullptr;
};

}  // namespace scanline
