// The network on a few rows: from what the canvas holds to the head's parameters.
//
// A row is one step of one slot, and rows are not slots: several successive steps of a slot may be
// rows of one call, in order, as long as the values before each are known. That is prefill, with
// the arithmetic of stepping.
//
// A team runs a call together: each member computes some of the columns of every product and some
// of the heads, and meets the others where it needs what they have computed. A team of one needs
// no meetings. No sum is ever split between members, so the result does not depend on the team.
#pragma once

#include <algorithm>
#include <vector>

#include "head.h"
#include "matrix.h"
#include "threads.h"
#include "weights.h"

namespace scanline {

// Rows of one call: whole blocks of the widest kernel. More would read the weights less often, but
// that hides behind the arithmetic of 12 rows or more, and the states in work would crowd the
// third-level cache.
constexpr int MAX_ROWS = BLOCK < 12 ? 3 * BLOCK : BLOCK;
constexpr int INPUT_ROWS = MAX_ROWS + 1;  // a product may read one row too many
constexpr float ATTENTION_EPS = 1e-6f;

struct Row {
    int slot, step;
};

// Sizes as they lie in memory.
struct Sizes {
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
        : model(round_up(c.d_model, LANES)),
          embedded(round_up(c.sinusoidal ? c.d_model / 2 : c.d_model, LANES)),
          wide(round_up(c.d_model, PANEL)), head(c.d_model / c.n_heads),
          head_padded(round_up(head, LANES)), unit(PANEL),
          hidden(round_up(c.d_ff, PANEL)), parameters(round_up(c.head_outputs, PANEL)),
          head_state(static_cast<size_t>(head + 1) * static_cast<size_t>(head_padded)),
          ring(c.short_conv ? (c.width + 1) * (c.channels / c.step_channels) + MAX_ROWS : 0),
          rings(head_state * static_cast<size_t>(c.n_heads * c.n_layers)),
          slot_state(rings + static_cast<size_t>(2 * c.n_layers * ring * wide)) {
        while (unit % head_padded) unit += PANEL;
        units = (c.n_heads * head_padded + unit - 1) / unit;
    }
    int qkv() const { return units * unit; }  // width of q, of k and of v
    int qkv_stride() const { return 3 * qkv() + 16; }  // an odd number of cache lines, as all rows
};

// What the members of a team share, and what each has for itself.
struct Team {
    Team(const Sizes& s, const InputFormat& format, int members)
        : members(members), barrier(members), qkv(size_t{MAX_ROWS} * s.qkv_stride()),
          attended(INPUT_ROWS * format.stride(s.qkv())), hidden(INPUT_ROWS * format.stride(s.hidden)),
          added(size_t{MAX_ROWS} * s.wide), parameters(size_t{MAX_ROWS} * s.parameters) {}

    const int members;
    Barrier barrier;
    bool held_up = false;  // by other processes: written before a meeting, read after
    Buffer<float> qkv;
    Buffer<std::byte> attended, hidden;
    Buffer<float> added, parameters;
};

struct Member {
    explicit Member(const Sizes& s)
        : x(size_t{MAX_ROWS} * s.wide), normalised(s.ring ? size_t{MAX_ROWS} * s.wide : 0),
          input(INPUT_ROWS * InputFormat(false).stride(s.wide)) {}

    Buffer<float> x;  // the residual stream
    Buffer<float> normalised;  // and that, where it is convolved
    Buffer<std::byte> input;
};

// A member's place in its team.
struct Seat {
    Team& team;
    int index;
    Member& member;

    Range share(int count) const { return Range::share(count, index, team.members); }
    void meet() const { team.barrier.meet(); }
    bool leads() const { return index == 0; }
};

class Network {
public:
    Network(const Config& config, const Weights& weights)
        : config_(config), sizes_(config), format_(config.bf16 != 0),
          embedding_(config, weights, sizes_.embedded, sizes_.model, sizes_.wide),
          norm_(weights.norm_weight, weights.norm_bias, config.d_model, sizes_.wide),
          predictor_(config.head_outputs, config.d_model, bf16_out(config, weights)) {
        predictor_.fill(weights.head_weight, weights.head_bias, config.head_outputs,
                        config.d_model);
        for (int l = 0; l < config.n_layers; ++l)
            layers_.emplace_back(config, weights.layers[l], sizes_, bf16_in(config, weights, l));
    }

    const Sizes& sizes() const { return sizes_; }
    const InputFormat& format() const { return format_; }

    // Run the rows, leaving the head's parameters of row r at `parameters(team, r)`. All members
    // call this with the same rows; `states` holds every slot's.
    void run(const Row* rows, int count, const Arrays& arrays, float* states,
             const Seat& seat) const {
        Team& team = seat.team;
        Member& member = seat.member;
        const size_t wide = static_cast<size_t>(sizes_.wide);
        const size_t hidden_stride = format_.stride(sizes_.hidden);
        const auto keep = [&](int row, int column, Vec v) {
            store(team.added.get() + row * wide + column, v);
        };
        const auto activate = [&](int row, int column, Vec v) {
            format_.put(team.hidden.get() + row * hidden_stride, column,
                        config_.gelu ? gelu(v) : relu(v));
        };
        for (int r = 0; r < count; ++r)
            embedding_.embed(arrays, rows[r].slot, rows[r].step, member.x.get() + r * wide);
        if (!config_.pre_norm) store_rows(count, member);
        float* heads = states;
        float* rings = states + sizes_.rings;
        for (const Layer& layer : layers_) {
            if (config_.pre_norm) norm_rows(layer.norm1, count, member, false, format_);
            if (sizes_.ring) convolve_rows(layer.conv1, rows, count, rings, seat, format_);
            rings += sizes_.ring * sizes_.wide;
            attend(layer, rows, count, heads, seat);
            heads += static_cast<size_t>(config_.n_heads) * sizes_.head_state;
            seat.meet();
            layer.out.multiply(team.attended.get(), format_.stride(sizes_.qkv()), count,
                               seat.share(layer.out.panels()), keep);
            seat.meet();
            add_rows(count, team, member);
            norm_rows(config_.pre_norm ? layer.norm2 : layer.norm1, count, member,
                      !config_.pre_norm, layer.linear1.format());
            if (sizes_.ring)
                convolve_rows(layer.conv2, rows, count, rings, seat, layer.linear1.format());
            rings += sizes_.ring * sizes_.wide;
            layer.linear1.multiply(member.input.get(),
                                   layer.linear1.format().stride(sizes_.wide), count,
                                   seat.share(layer.linear1.panels()), activate);
            seat.meet();
            layer.linear2.multiply(team.hidden.get(), hidden_stride, count,
                                   seat.share(layer.linear2.panels()), keep);
            seat.meet();
            add_rows(count, team, member);
            if (!config_.pre_norm) norm_rows(layer.norm2, count, member, true, format_);
        }
        norm_rows(norm_, count, member, false, predictor_.format());
        predictor_.multiply(member.input.get(), predictor_.format().stride(sizes_.wide), count,
                            seat.share(predictor_.panels()),
                            [&](int row, int column, Vec v) {
                                store(parameters(team, row) + column, v);
                            });
        seat.meet();
    }

    float* parameters(Team& team, int row) const {
        return team.parameters.get() + static_cast<size_t>(row) * sizes_.parameters;
    }

private:
    // Where intensities come in by a linear map, bf16's eight bits are too coarse at both ends: for
    // what the first feed-forward network sees, which compares neighbouring ones, and for the means
    // of logistics that are as narrow as an intensity.
    static bool bf16_in(const Config& c, const Weights& w, int layer) {
        return c.bf16 != 0 && (layer > 0 || !w.linear_weight);
    }
    static bool bf16_out(const Config& c, const Weights& w) {
        return c.bf16 != 0 && (c.categorical || !w.linear_weight);
    }

    struct Layer {
        Packed qkv, out, linear1, linear2;
        Norm norm1, norm2;
        Table conv1, conv2;

        Layer(const Config& c, const LayerWeights& w, const Sizes& s, bool bf16_1)
            : qkv(3 * s.qkv(), c.d_model, c.bf16 != 0), out(c.d_model, s.qkv(), c.bf16 != 0),
              linear1(c.d_ff, c.d_model, bf16_1), linear2(c.d_model, s.hidden, c.bf16 != 0),
              norm1(w.norm1_weight, w.norm1_bias, c.d_model, s.wide),
              norm2(w.norm2_weight, w.norm2_bias, c.d_model, s.wide),
              conv1(w.conv1_weight, TAPS, c.d_model, s.wide),
              conv2(w.conv2_weight, TAPS, c.d_model, s.wide) {
            // Where feature i of the heads laid end to end lies, each head padded.
            const auto place = [&](int i) { return i / s.head * s.head_padded + i % s.head; };
            const float* weights[] = {w.query_weight, w.key_weight, w.value_weight};
            const float* biases[] = {w.query_bias, w.key_bias, w.value_bias};
            for (int part = 0; part < 3; ++part) {
                // φ of padding must be 0, so that it adds nothing to the denominator.
                for (int o = 0; part < 2 && o < s.qkv(); ++o)
                    qkv.set_bias(part * s.qkv() + o, NOTHING);
                for (int o = 0; o < c.d_model; ++o) {
                    const int output = part * s.qkv() + place(o);
                    for (int i = 0; i < c.d_model; ++i)
                        qkv.set(output, i, weights[part][static_cast<size_t>(o) * c.d_model + i]);
                    qkv.set_bias(output, biases[part][o]);
                }
            }
            for (int o = 0; o < c.d_model; ++o) {
                for (int i = 0; i < c.d_model; ++i)
                    out.set(o, place(i), w.out_weight[static_cast<size_t>(o) * c.d_model + i]);
                out.set_bias(o, w.out_bias[o]);
            }
            linear1.fill(w.linear1_weight, w.linear1_bias, c.d_ff, c.d_model);
            linear2.fill(w.linear2_weight, w.linear2_bias, c.d_model, c.d_ff);
        }
    };

    // q, k, v of this member's heads, then their states and outputs.
    void attend(const Layer& layer, const Row* rows, int count, float* states,
                const Seat& seat) const {
        const int width = sizes_.qkv(), panels = sizes_.unit / PANEL;
        const size_t stride = static_cast<size_t>(sizes_.qkv_stride());
        float* const qkv = seat.team.qkv.get();
        const Range units = seat.share(sizes_.units);
        for (int part = 0; part < 3; ++part) {
            const int first = part * sizes_.units * panels;
            layer.qkv.multiply(seat.member.input.get(), format_.stride(sizes_.wide), count,
                               {first + units.begin * panels, first + units.end * panels},
                               [&](int row, int column, Vec v) {
                                   float* const place = qkv + row * stride + column;
                                   store(place, part < 2 ? feature_map(v) : v);
                               });
        }
        const int heads = sizes_.unit / sizes_.head_padded;
        const int last = std::min(units.end * heads, config_.n_heads);
        for (int row = 0; row < count; ++row) {
            float* const slot = states + static_cast<size_t>(rows[row].slot) * sizes_.slot_state;
            std::byte* const output = seat.team.attended.get() + row * format_.stride(width);
            for (int head = units.begin * heads; head < last; ++head) {
                const int column = head * sizes_.head_padded;
                const float* q = qkv + row * stride + column;
                float* const state = slot + static_cast<size_t>(head) * sizes_.head_state;
                attend_head(q, q + width, q + 2 * width, state, output, column);
            }
        }
    }

    // Eq. 18-20 of one head in one pass over its state.
    void attend_head(const float* q, const float* k, const float* v, float* kv, std::byte* output,
                     int column) const {
        const int K = sizes_.head, V = sizes_.head_padded;
        float* const z = kv + K * V;
        Vec products = {};
        for (int i = 0; i < V; i += LANES) {
            const Vec sums = load(z + i) + load(k + i);
            store(z + i, sums);
            products = fma(load(q + i), sums, products);
        }
        const float denominator = sum(products) + ATTENTION_EPS;
        int j = 0;
        for (; j + 4 * LANES <= V; j += 4 * LANES)
            attend_columns<4>(q, k, v + j, kv + j, denominator, output, column + j);
        for (; j + 2 * LANES <= V; j += 2 * LANES)
            attend_columns<2>(q, k, v + j, kv + j, denominator, output, column + j);
        for (; j < V; j += LANES)
            attend_columns<1>(q, k, v + j, kv + j, denominator, output, column + j);
    }

    template <int COLUMNS>
    void attend_columns(const float* q, const float* k, const float* v, float* kv,
                        float denominator, std::byte* output, int column) const {
        const int K = sizes_.head, V = sizes_.head_padded;
        Vec values[COLUMNS], sums[2][COLUMNS] = {};  // even and odd rows apart: two short chains
        for (int c = 0; c < COLUMNS; ++c) values[c] = load(v + c * LANES);
        const auto update = [&](int i, Vec* total) {
            const Vec key = broadcast(k[i]), query = broadcast(q[i]);
            // The next head's place too: its state follows, and comes from a slower cache.
            for (int c = 0; c < COLUMNS * LANES; c += 16)
                __builtin_prefetch(kv + (K + 1 + i) * V + c, 1, 3);
            for (int c = 0; c < COLUMNS; ++c) {
                float* const place = kv + i * V + c * LANES;
                const Vec state = fma(key, values[c], load(place));
                store(place, state);
                total[c] = fma(query, state, total[c]);
            }
        };
        int i = 0;
        for (; i + 2 <= K; i += 2) {
            update(i, sums[0]);
            update(i + 1, sums[1]);
        }
        if (i < K) update(i, sums[0]);
        for (int c = 0; c < COLUMNS; ++c)
            format_.put(output, column + c * LANES, (sums[0][c] + sums[1][c]) / denominator);
    }

    // The residual connection. Each member keeps the whole stream for itself.
    void add_rows(int count, const Team& team, Member& member) const {
        float* const x = member.x.get();
        for (int i = 0; i < count * sizes_.wide; i += LANES)
            store(x + i, load(x + i) + load(team.added.get() + i));
    }

    // Normalise the rows into the next product's input and, `in_place`, the stream (post-norm).
    void norm_rows(const Norm& norm, int count, Member& member, bool in_place,
                   const InputFormat& format) const {
        const size_t stride = format.stride(sizes_.wide);
        for (int r = 0; r < count; ++r) {
            float* const x = member.x.get() + r * sizes_.wide;
            std::byte* const input = member.input.get() + r * stride;
            float* const kept = member.normalised.get() + r * sizes_.wide;
            norm.apply(x, [&](int i, Vec v) {
                format.put(input, i, v);
                if (in_place) store(x + i, v);
                else if (sizes_.ring) store(kept + i, v);
            });
        }
    }

    // What the next product sees, convolved with what it saw before (kernels/short_conv.py). Steps
    // of this call are read from the member's own rows and older ones from the rings, which hold so
    // many more than are needed that what the leader writes is not read before the next meeting.
    void convolve_rows(const Table& weights, const Row* rows, int count, float* rings,
                       const Seat& seat, const InputFormat& format) const {
        Member& member = seat.member;
        const float* const mine = config_.pre_norm ? member.normalised.get() : member.x.get();
        const int stride = config_.channels / config_.step_channels;
        const int columns = config_.width * stride, wide = sizes_.wide;
        const int distances[TAPS] = {0, stride, columns + stride, columns, columns - stride};
        for (int r = 0; r < count; ++r) {
            const int step = rows[r].step, column = step % columns;
            float* const ring = rings + static_cast<size_t>(rows[r].slot) * sizes_.slot_state;
            const float* taps[TAPS];
            for (int tap = 0; tap < TAPS; ++tap) {
                const int distance = distances[tap], before = r - distance;
                const bool outside = step < distance || (tap % 3 != 0 && tap < 3 && column < stride) ||
                                     (tap == 4 && column >= columns - stride);
                if (outside) taps[tap] = nullptr;
                else if (before >= 0 && rows[before].slot == rows[r].slot) taps[tap] = mine + before * wide;
                else taps[tap] = ring + (step - distance) % sizes_.ring * wide;
            }
            std::byte* const input = member.input.get() + r * format.stride(wide);
            for (int i = 0; i < wide; i += LANES) {
                Vec y = load(weights[0] + i) * load(taps[0] + i);
                for (int tap = 1; tap < TAPS; ++tap)
                    if (taps[tap]) y = fma(load(weights[tap] + i), load(taps[tap] + i), y);
                format.put(input, i, y);
            }
            if (seat.leads()) std::copy_n(mine + r * wide, wide, ring + step % sizes_.ring * wide);
        }
    }

    void store_rows(int count, Member& member) const {
        for (int r = 0; r < count; ++r)
            for (int i = 0; i < sizes_.wide; i += LANES)
                format_.put(member.input.get() + r * format_.stride(sizes_.wide), i,
                            load(member.x.get() + r * sizes_.wide + i));
    }

    const Config config_;
    const Sizes sizes_;
    const InputFormat format_;
    const Embedding embedding_;
    std::vector<Layer> layers_;
    const Norm norm_;
    Packed predictor_;
};

}  // namespace scanline
