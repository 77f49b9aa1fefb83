// What a call's rows are, how a network's sizes lie in memory, and the threads that compute together.
#pragma once

#include <algorithm>

#include "value_predictor.h"
#include "matrix.h"
#include "thread_pool.h"
#include "weights.h"

namespace scanline {

// Rows of one pass: whole blocks of the widest kernel. More would read the weights less often, but
// that hides behind the arithmetic of 12 rows or more, unless it is AMX's, and the states in work would
// crowd the third-level cache.
constexpr int MAX_ROWS = TILES ? 2 * TILE_ROWS : BLOCK < 12 ? 3 * BLOCK : BLOCK;
constexpr int INPUT_ROWS = MAX_ROWS + 1;  // a product may read one row too many
// Sharing each product's columns between threads reads the weights once, and pays for some 40
// meetings a step: measured to be worth it below so many rows a thread.
constexpr int SHARED_ROWS = 2;

struct Row {
    int slot, step;
};

// Successive steps of one slot, `count` rows from `first` on. Those before `kept` have sure inputs:
// their sums go into the state at once. Those after were computed on guesses, and the keys and values
// of the first `late` of them in the pass before, whose guesses were right, are still to be added.
// They lie at `place` and after, which belongs to the slot until all is added.
struct Run {
    int slot, first, count, kept, late, place;
};

// A value to be decided: its row, its twin's or -1, and what comes out.
struct Decision {
    Row row;
    int parameters, unconditional;
    uint8_t values[MAX_CHANNELS];
    float bits;
};

struct Pass {
    Row rows[MAX_ROWS];
    Run runs[MAX_ROWS];
    Decision decisions[MAX_ROWS];
    int row_count = 0, run_count = 0, decision_count = 0;
};

// Sizes as they lie in memory.
struct Sizes {
    int layers;
    int model, embedded;     // d_model and the embedding's part of it, in whole vectors
    int wide;                // d_model in whole panels
    int head, head_padded;   // K = V, and that in whole vectors
    int unit, units;         // outputs of q (k, v) that whole panels and whole heads share
    int hidden, parameters;  // in whole panels
    size_t head_state;       // floats of a head's state: kv [K, V padded], then z [K padded]
    int ring;                // steps that a short convolution's ring holds, 0 without one
    size_t rings;            // where the rings begin in a slot's state: after [L, H] of those
    size_t slot_state;       // floats of a slot's state: [L, 2] rings [ring, wide] at its end

    explicit Sizes(const Config& c)
        : layers(c.n_layers), model(round_up(c.d_model, LANES)),
          embedded(round_up(c.sinusoidal ? c.d_model / 2 : c.d_model, LANES)),
          wide(round_up(c.d_model, PANEL)), head(c.d_model / c.n_heads),
          head_padded(round_up(head, LANES)), unit(PANEL),
          hidden(round_up(c.d_ff, PANEL)), parameters(round_up(c.head_outputs, PANEL)),
          head_state(static_cast<size_t>(head + 1) * static_cast<size_t>(head_padded)),
          ring(c.short_conv ? (c.width + 1) * steps_per_pixel(c) + MAX_ROWS : 0),
          rings(head_state * static_cast<size_t>(c.n_heads * c.n_layers)),
          slot_state(rings + size_t{2} * c.n_layers * ring * wide) {
        while (unit % head_padded) unit += PANEL;
        units = (c.n_heads * head_padded + unit - 1) / unit;
    }
    int qkv() const { return units * unit; }  // width of q, of k and of v
    int qkv_stride() const { return 3 * qkv() + 16; }  // an odd number of cache lines, as all rows
};

// What the members of a team share, and what each has for itself.
struct Team {
    Team(const Config& c, const Sizes& s, const InputFormat& format)
        : qkv(size_t{MAX_ROWS} * s.qkv_stride()),
          attended(INPUT_ROWS * format.stride(s.qkv())), hidden(INPUT_ROWS * format.stride(s.hidden)),
          added(size_t{MAX_ROWS} * s.wide), parameters(size_t{MAX_ROWS} * s.parameters),
          late(static_cast<size_t>(s.layers) * MAX_ROWS * 2 * s.qkv()), guesses(c) {}

    void gather(int count) {
        members = count;
        barrier.gather(count);
    }

    int members = 1;
    Barrier barrier;
    Pass pass;  // written by the leader before a meeting, read after
    Buffer<float> qkv;
    Buffer<std::byte> attended, hidden;
    Buffer<float> added, parameters;
    Buffer<float> late;  // [L, MAX_ROWS, k and v]: of rows computed on guesses
    ValuePredictor guesses;     // the leader's
};

struct Member {
    explicit Member(const Sizes& s)
        : x(size_t{MAX_ROWS} * s.wide), normalised(s.ring ? size_t{MAX_ROWS} * s.wide : 0),
          input(INPUT_ROWS * InputFormat(Format::INT8).stride(std::max({s.wide, s.hidden, s.qkv()}))) {}

    Buffer<float> x;  // the residual stream
    Buffer<float> normalised;  // and that, where it is convolved
    Buffer<std::byte> input;  // of a product, in its format
};

// A member's place in its team.
struct Seat {
    Team& team;
    int index;
    Member& member;

    Range share(int count) const { return Range::share(count, index, team.members); }
    void meet() const { team.barrier.meet(index); }
    bool leads() const { return index == 0; }
};

}  // namespace scanline
