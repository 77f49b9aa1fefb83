// The native CPU decoder behind a plain C ABI: many images in flight, whole pixels at a time.
//
// model/decoders/contract.py defines what every call does; this file is the loop over pixels, slots
// and threads. build.py builds it, model/decoders/native.py adapts it.

#include <algorithm>
#include <cstdio>
#include <exception>

#include "machine.h"
#include "network.h"

namespace scanline {

// Sharing each product's columns between all threads reads the weights once, and pays for some 40
// meetings a step: measured to be worth it below so many rows a thread.
constexpr int SHARED_ROWS = 2;
// Threads that meet this often lose whole time slices where other processes want the cores. So
// many meetings that outlast their spin tell so, and the next pixels run without meetings.
constexpr int TOO_MANY_SLEEPS = 3, ALONE_PIXELS = 512;

class Decoder {
public:
    Decoder(const Config& config, const Weights& weights, const Arrays& arrays)
        : config_(config), arrays_(arrays), pixels_(config.height * config.width),
          steps_per_pixel_(config.channels / config.step_channels), network_(config, weights),
          head_(config.categorical != 0, config.step_channels, weights.head_tables),
          states_(network_.sizes().slot_state * static_cast<size_t>(config.max_slots)),
          pool_(config.threads), together_(network_.sizes(), network_.format(), pool_.threads()) {
        for (int i = 0; i < pool_.threads(); ++i) {
            members_.emplace_back(network_.sizes());
            alone_.push_back(std::make_unique<Team>(network_.sizes(), network_.format(), 1));
        }
        seen_.resize(static_cast<size_t>(config.max_slots));
        slots_.reserve(seen_.size());
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
        const bool few = pool_.threads() > 1 && count < SHARED_ROWS * pool_.threads() &&
                         count <= MAX_ROWS;
        n = count ? std::min(n, pixels_) : 0;
        if (few && n > 0 && alone_pixels_ <= 0) {
            together_.held_up = false;
            together_.barrier.forget_sleeps();
            int done = 0;
            spread_together(count, [&](Range slots, const Seat& seat) {
                const int drawn = draw(slots, n, seat);
                if (seat.leads()) done = drawn;
            });
            n -= done;
            if (n > 0) alone_pixels_ = ALONE_PIXELS;
        }
        if (n <= 0) return;
        if (alone_pixels_ > 0) alone_pixels_ -= n;
        // A pair that would be torn makes its part a slot longer.
        spread_parts(count, guided_ ? MAX_ROWS - 1 : MAX_ROWS,
                     [&](Range slots, const Seat& seat) { draw(whole_pairs(slots), n, seat); });
    }

    // Each collected slot from nothing, with its first lengths[i] pixels. Returns false where a
    // length is out of range.
    bool begin(const int32_t* lengths) {
        const int count = static_cast<int>(slots_.size());
        for (int i = 0; i < count; ++i)
            if (lengths[i] < 0 || lengths[i] > pixels_) return false;
        if (count == 0) return true;
        const auto work = [&](Range slots, const Seat& seat) {
            for (int i = slots.begin; i < slots.end; ++i)
                absorb(slots_[static_cast<size_t>(i)], lengths[i], seat);
        };
        if (count < pool_.threads()) spread_together(count, work);
        else spread_parts(count, 1, work);
        return true;
    }

    void copy(const int32_t* sources, const int32_t* targets, int count) {
        const size_t size = network_.sizes().slot_state;
        for (int i = 0; i < count; ++i)
            std::copy_n(states_.get() + static_cast<size_t>(sources[i]) * size, size,
                        states_.get() + static_cast<size_t>(targets[i]) * size);
    }

    float* states() { return states_.get(); }
    const Sizes& sizes() const { return network_.sizes(); }
    void trace(float* parameters) { trace_ = parameters; }

private:
    // Have `work(all slots, seat)` done by one team of all threads.
    template <typename Work>
    void spread_together(int count, const Work& work) {
        pool_.run([&](int i) {
            work(Range{0, count}, Seat{together_, i, members_[static_cast<size_t>(i)]});
        });
    }

    // Have `work(range of slots, seat)` done by each thread alone, for parts of at most `most`.
    template <typename Work>
    void spread_parts(int count, int most, const Work& work) {
        const int threads = pool_.threads();
        const int rounds = (count + threads * most - 1) / (threads * most);
        const int parts = std::min(count, rounds * threads);
        std::atomic<int> next{0};
        const auto job = [&](int i) {
            const auto thread = static_cast<size_t>(i);
            const Seat seat{*alone_[thread], 0, members_[thread]};
            for (int part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;)
                work(Range::share(count, part, parts), seat);
        };
        if (parts == 1) job(0);
        else pool_.run(job);
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

    // Returns how many pixels it came to: fewer than n where the team is held up.
    int draw(Range slots, int n, const Seat& seat) {
        Row rows[MAX_ROWS];
        int first[MAX_ROWS];
        const int* const mine = slots_.data() + slots.begin;
        const int count = slots.end - slots.begin;
        for (int i = 0; i < count; ++i)
            first[i] = std::clamp(arrays_.positions[mine[i]], 0, pixels_);
        seat.meet();  // all have read the positions before one writes them
        for (int done = 0; done < n; ++done) {
            if (seat.team.held_up) return done;
            for (int part = 0; part < steps_per_pixel_; ++part) {
                int running = 0;
                for (int i = 0; i < count; ++i) {
                    const int pixel = first[i] + done;
                    if (pixel < pixels_)
                        rows[running++] = {mine[i], pixel * steps_per_pixel_ + part};
                }
                if (running == 0) return n;
                run(rows, running, seat);
            }
            for (int i = 0; seat.leads() && i < count; ++i)
                arrays_.positions[mine[i]] = std::min(pixels_, first[i] + done + 1);
        }
        return n;
    }

    void absorb(int slot, int length, const Seat& seat) {
        if (seat.leads()) {
            clear(slot);
            float* const bits = arrays_.bits + at(slot, 1);
            std::fill(bits + length, bits + pixels_, 0.0f);
        }
        seat.meet();
        Row rows[MAX_ROWS];
        const int steps = length * steps_per_pixel_;
        for (int step = 0; step < steps;) {
            int count = 0;
            while (count < MAX_ROWS && step < steps) rows[count++] = {slot, step++};
            run(rows, count, seat);
        }
        if (seat.leads()) arrays_.positions[slot] = length;
    }

    // Run rows through the network and decide their values. Rows of one slot come in order, and all
    // but its last are known.
    void run(const Row* rows, int count, const Seat& seat) {
        Row modelled[MAX_ROWS];
        int running = 0;
        for (int r = 0; r < count; ++r)
            if (rows[r].step > 0 || !config_.start_given) modelled[running++] = rows[r];
        if (running < count) {
            for (int r = 0; seat.leads() && r < count; ++r)
                if (rows[r].step == 0) give_first(rows[r].slot);
            seat.meet();
        }
        if (running == 0) return;
        network_.run(modelled, running, arrays_, states_.get(), seat);
        // A pixel's steps add to one sum of bits, and a twin gets its image's values: they stay with
        // one thread.
        const auto twin = [&](int r) {
            return r > 0 && r < running && arrays_.twin[modelled[r - 1].slot] == modelled[r].slot;
        };
        const auto inside = [&](int r) {
            return twin(r) || (r > 0 && r < running && modelled[r].slot == modelled[r - 1].slot &&
                               modelled[r].step % steps_per_pixel_);
        };
        Range mine = seat.share(running);
        while (inside(mine.begin)) ++mine.begin;
        while (inside(mine.end)) ++mine.end;
        for (int r = mine.begin; r < mine.end; ++r) {
            if (twin(r)) follow(modelled[r - 1], modelled[r]);
            else decide(modelled[r], network_.parameters(seat.team, r),
                        twin(r + 1) ? network_.parameters(seat.team, r + 1) : nullptr);
        }
        if (seat.leads() && seat.team.barrier.sleeps() >= TOO_MANY_SLEEPS)
            seat.team.held_up = true;
        seat.meet();
    }

    // The first value of a network that never models it.
    void give_first(int slot) {
        if (!arrays_.known[at(slot, 1)])
            arrays_.canvas[at(slot, config_.channels)] = static_cast<uint8_t>(config_.first_value);
        arrays_.bits[at(slot, 1)] = 0.0f;
    }

    void decide(Row row, const float* parameters, const float* unlabelled) {
        const int pixel = row.step / steps_per_pixel_;
        const size_t here = at(row.slot, 1) + static_cast<size_t>(pixel);
        const Draw draw{arrays_.noise + at(row.slot, config_.draws) + row.step * config_.step_draws,
                        arrays_.temperature[row.slot], arrays_.top_p[row.slot],
                        arrays_.guidance[row.slot], arrays_.known[here] != 0};
        uint8_t* const values =
            arrays_.canvas + at(row.slot, config_.channels) + row.step * config_.step_channels;
        const float bits = head_.decide(parameters, unlabelled, draw, values);
        arrays_.bits[here] = row.step % steps_per_pixel_ ? arrays_.bits[here] + bits : bits;
        if (trace_)
            std::copy_n(parameters, config_.head_outputs,
                        trace_ + (at(row.slot, steps_per_pixel_) + static_cast<size_t>(row.step)) *
                                     static_cast<size_t>(config_.head_outputs));
    }

    // A twin's values and bits are its image's.
    void follow(Row image, Row twin) {
        const size_t step = static_cast<size_t>(image.step * config_.step_channels);
        std::copy_n(arrays_.canvas + at(image.slot, config_.channels) + step, config_.step_channels,
                    arrays_.canvas + at(twin.slot, config_.channels) + step);
        const size_t pixel = static_cast<size_t>(image.step / steps_per_pixel_);
        arrays_.bits[at(twin.slot, 1) + pixel] = arrays_.bits[at(image.slot, 1) + pixel];
    }

    // Where a slot begins in an array of `each` values a pixel.
    size_t at(int slot, int each) const {
        return static_cast<size_t>(slot) * static_cast<size_t>(pixels_ * each);
    }

    void clear(int slot) {
        const size_t size = network_.sizes().slot_state;
        std::fill_n(states_.get() + static_cast<size_t>(slot) * size, size, 0.0f);
    }

    const Config config_;
    const Arrays arrays_;
    const int pixels_, steps_per_pixel_;
    const Network network_;
    const Head head_;
    Buffer<float> states_;
    Pool pool_;
    Team together_;
    std::vector<std::unique_ptr<Team>> alone_;
    std::vector<Member> members_;
    std::vector<int> slots_;
    std::vector<bool> seen_;
    bool guided_ = false;  // whether a twin is among the slots
    int alone_pixels_ = 0;
    float* trace_ = nullptr;
};

}  // namespace scanline

// What calls return; kernels/native/abi.py knows these.
namespace {
enum Status { DONE = 0, BAD_SLOTS = 1, BAD_LENGTHS = 2 };
}

// All else stays hidden, so that builds for several ISAs can live in one process.
#pragma GCC visibility push(default)
extern "C" {

// Copies the weights; keeps the `arrays`. Null where memory or threads are short, the reason in
// `error`.
scanline::Decoder* scanline_open(const Config* config, const Weights* weights, const Arrays* arrays,
                                 char* error, int size) {
    try {
        return new scanline::Decoder(*config, *weights, *arrays);
    } catch (const std::exception& reason) {
        std::snprintf(error, static_cast<size_t>(size), "%s", reason.what());
        return nullptr;
    }
}

void scanline_close(scanline::Decoder* decoder) { delete decoder; }

int scanline_step(scanline::Decoder* decoder, const int32_t* slots, int count, int n) {
    if (!decoder->collect(slots, count, true)) return BAD_SLOTS;
    decoder->step(n);
    return DONE;
}

// `lengths` belongs to `slots`, twins among them, in which no -1 may stand.
int scanline_begin(scanline::Decoder* decoder, const int32_t* slots, const int32_t* lengths,
                   int count) {
    if (!decoder->collect(slots, count, false)) return BAD_SLOTS;
    return decoder->begin(lengths) ? DONE : BAD_LENGTHS;
}

// All of the state from sources to targets, none of which is a source.
void scanline_copy(scanline::Decoder* decoder, const int32_t* sources, const int32_t* targets,
                   int count) {
    decoder->copy(sources, targets, count);
}

// All slots' states, one after another: float32 [L, H, K + 1, V padded], the last row of each head
// z, then the rings [L, 2, ring, D padded].
float* scanline_states(scanline::Decoder* decoder) { return decoder->states(); }
int scanline_slot_state(const scanline::Decoder* decoder) {
    return static_cast<int>(decoder->sizes().slot_state);
}
int scanline_head_padded(const scanline::Decoder* decoder) { return decoder->sizes().head_padded; }

// Write every row's head parameters to float32 [slots, steps, head_outputs] too; null to stop.
void scanline_trace(scanline::Decoder* decoder, float* parameters) { decoder->trace(parameters); }

// The machine's peaks with so many threads: operations a second in bf16 and float32, and bytes read
// a second from 12 MB (a network's weights) and from 512 MB. Takes some seconds; 0 where it fails.
void scanline_measure(int threads, double peaks[4]) {
    std::fill_n(peaks, 4, 0.0);
    try {
        scanline::Pool pool(threads);
        peaks[0] = scanline::peak_operations<true>(pool);
        peaks[1] = scanline::peak_operations<false>(pool);
        peaks[2] = scanline::read_bandwidth(pool, size_t{12} << 20);
        peaks[3] = scanline::read_bandwidth(pool, size_t{512} << 20);
    } catch (const std::exception&) {
        return;
    }
}

// Bytes a second that so many threads read, again and again, of memory of this size; 0 where it
// fails.
double scanline_bandwidth(int threads, int64_t bytes) {
    try {
        scanline::Pool pool(threads);
        return scanline::read_bandwidth(pool, static_cast<size_t>(bytes));
    } catch (const std::exception&) {
        return 0.0;
    }
}

// The instructions this was built for.
const char* scanline_isa() {
#if defined(__AVX512BF16__)
    return "avx512bf16";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "avx2";
#else
    return "portable";
#endif
}
}
#pragma GCC visibility pop
