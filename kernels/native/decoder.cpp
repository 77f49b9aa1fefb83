// The native CPU decoder behind a plain C ABI: many images in flight, whole pixels at a time.
//
// `model/decoders/contract.py` defines what every call does; this file is the loop over pixels, slots and
// threads. kernels/native/build.py builds it, model/decoders/native.py adapts it.

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
    Decoder(const Config& config, const Weights& weights, const Inputs& inputs)
        : config_(config), inputs_(inputs), pixels_(config.height * config.width),
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

    // The slots given, less -1. Returns false where one is out of range or comes twice.
    bool collect(const int32_t* slots, int count) {
        slots_.clear();
        bool valid = true;
        for (int i = 0; valid && i < count; ++i) {
            const int slot = slots[i];
            if (slot == -1) continue;
            valid = slot >= 0 && slot < config_.max_slots && !seen_[static_cast<size_t>(slot)];
            if (!valid) break;
            seen_[static_cast<size_t>(slot)] = true;
            slots_.push_back(slot);
        }
        for (const int slot : slots_) seen_[static_cast<size_t>(slot)] = false;
        return valid;
    }

    void reset() {
        for (const int slot : slots_) {
            clear(slot);
            inputs_.positions[slot] = 0;
        }
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
        spread_parts(count, MAX_ROWS,
                     [&](Range slots, const Seat& seat) { draw(slots, n, seat); });
    }

    // The first lengths[i] pixels of each collected slot, from nothing. Returns false where one is
    // out of range.
    bool prefill(const int32_t* lengths) {
        const int count = static_cast<int>(slots_.size());
        for (int i = 0; i < count; ++i)
            if (lengths[i] < 0 || lengths[i] > pixels_) return false;
        if (count == 0) return true;
        const auto work = [&](Range slots, const Seat& seat) {
            for (int i = slots.begin; i < slots.end; ++i)
                if (lengths[i] > 0)
                    absorb(slots_[static_cast<size_t>(i)], lengths[i], seat);
        };
        if (count < pool_.threads()) spread_together(count, work);
        else spread_parts(count, 1, work);
        return true;
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

    // Returns how many pixels it came to: fewer than n where the team is held up.
    int draw(Range slots, int n, const Seat& seat) {
        Row rows[MAX_ROWS];
        int first[MAX_ROWS];
        const int* const mine = slots_.data() + slots.begin;
        const int count = slots.end - slots.begin;
        for (int i = 0; i < count; ++i)
            first[i] = std::clamp(inputs_.positions[mine[i]], 0, pixels_);
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
                inputs_.positions[mine[i]] = std::min(pixels_, first[i] + done + 1);
        }
        return n;
    }

    void absorb(int slot, int length, const Seat& seat) {
        if (seat.leads()) {
            clear(slot);
            float* const bits = inputs_.bits + at(slot, 1);
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
        if (seat.leads()) inputs_.positions[slot] = length;
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
        network_.run(modelled, running, inputs_, states_.get(), seat);
        // A pixel's steps add to one sum of bits, so they stay with one thread.
        const auto inside = [&](int r) {
            return r > 0 && r < running && modelled[r].slot == modelled[r - 1].slot &&
                   modelled[r].step % steps_per_pixel_;
        };
        Range mine = seat.share(running);
        while (inside(mine.begin)) ++mine.begin;
        while (inside(mine.end)) ++mine.end;
        for (int r = mine.begin; r < mine.end; ++r)
            decide(modelled[r], network_.parameters(seat.team, r));
        if (seat.leads() && seat.team.barrier.sleeps() >= TOO_MANY_SLEEPS)
            seat.team.held_up = true;
        seat.meet();
    }

    // The first value of a network that never models it.
    void give_first(int slot) {
        if (!inputs_.known[at(slot, 1)])
            inputs_.canvas[at(slot, config_.channels)] = static_cast<uint8_t>(config_.first_value);
        inputs_.bits[at(slot, 1)] = 0.0f;
    }

    void decide(Row row, const float* parameters) {
        const int pixel = row.step / steps_per_pixel_;
        const size_t here = at(row.slot, 1) + static_cast<size_t>(pixel);
        const Draw draw{inputs_.noise + at(row.slot, config_.draws) + row.step * config_.step_draws,
                        inputs_.temperature[row.slot], inputs_.known[here] != 0};
        uint8_t* const values =
            inputs_.canvas + at(row.slot, config_.channels) + row.step * config_.step_channels;
        const float bits = head_.decide(parameters, draw, values);
        inputs_.bits[here] = row.step % steps_per_pixel_ ? inputs_.bits[here] + bits : bits;
        if (trace_)
            std::copy_n(parameters, config_.head_outputs,
                        trace_ + (at(row.slot, steps_per_pixel_) + static_cast<size_t>(row.step)) *
                                     static_cast<size_t>(config_.head_outputs));
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
    const Inputs inputs_;
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

// Copies the weights; keeps `inputs`' arrays. Null where memory or threads are short, the reason in
// `error`.
scanline::Decoder* scanline_open(const Config* config, const Weights* weights, const Inputs* inputs,
                                 char* error, int size) {
    try {
        return new scanline::Decoder(*config, *weights, *inputs);
    } catch (const std::exception& reason) {
        std::snprintf(error, static_cast<size_t>(size), "%s", reason.what());
        return nullptr;
    }
}

void scanline_close(scanline::Decoder* decoder) { delete decoder; }

int scanline_reset(scanline::Decoder* decoder, const int32_t* slots, int count) {
    if (!decoder->collect(slots, count)) return BAD_SLOTS;
    decoder->reset();
    return DONE;
}

int scanline_step(scanline::Decoder* decoder, const int32_t* slots, int count, int n) {
    if (!decoder->collect(slots, count)) return BAD_SLOTS;
    decoder->step(n);
    return DONE;
}

// `lengths` belongs to `slots`, in which no -1 may stand.
int scanline_prefill(scanline::Decoder* decoder, const int32_t* slots, const int32_t* lengths,
                     int count) {
    if (!decoder->collect(slots, count)) return BAD_SLOTS;
    return decoder->prefill(lengths) ? DONE : BAD_LENGTHS;
}

// All slots' states: float32 [slots, L, H, K + 1, V padded], the last row of each head z.
float* scanline_states(scanline::Decoder* decoder) { return decoder->states(); }
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
