// A team of threads that compute a pass together, and their buffers.
#pragma once

#include <algorithm>

#include "sizes.h"
#include "thread_pool.h"
#include "value_predictor.h"

namespace scanline {

// Splitting a product's columns between threads reads the weights only once, but costs four barriers per
// layer. Measured to be worth it below this number of rows per thread.
constexpr int SHARED_ROWS = 2;

// What the workers of a team share.
struct Team {
    Team(const Config& c, const Sizes& s, const InputFormat& format)
        : qkv(size_t{MAX_ROWS} * s.qkv_stride()),
          attended(INPUT_ROWS * format.stride(s.qkv())), hidden(INPUT_ROWS * format.stride(s.hidden)),
          added(size_t{MAX_ROWS} * s.model), parameters(size_t{MAX_ROWS} * s.parameters),
          pending(static_cast<size_t>(s.layers) * MAX_ROWS * 2 * s.qkv()), predictor(c) {}

    void resize(int workers) {
        size = workers;
        barrier.reset(workers);
    }

    int size = 1;
    Barrier barrier;
    Pass pass;  // written by the leader before a barrier, read after it
    Buffer<float> qkv;
    Buffer<std::byte> attended, hidden;
    Buffer<float> added, parameters;
    Buffer<float> pending;     // [L, MAX_ROWS, k and v] of rows with predicted inputs
    ValuePredictor predictor;  // used by the leader only
};

// A thread's own buffers.
struct WorkerBuffers {
    explicit WorkerBuffers(const Sizes& s)
        : x(size_t{MAX_ROWS} * s.model), normalised(s.ring ? size_t{MAX_ROWS} * s.model : 0),
          input(INPUT_ROWS * InputFormat(Format::INT10).stride(std::max({s.model, s.hidden, s.qkv()}))) {}

    Buffer<float> x;           // the residual stream
    Buffer<float> normalised;  // the normalised stream, if it is convolved
    Buffer<std::byte> input;   // input rows of a product; no format has longer rows than INT10
};

// A thread as a member of its team.
struct Worker {
    Team& team;
    int index;
    WorkerBuffers& buffers;

    Range part(int count) const { return Range::part(count, index, team.size); }
    void barrier() const { team.barrier.arrive_and_wait(index); }
    bool is_leader() const { return index == 0; }
};

}  // namespace scanline
