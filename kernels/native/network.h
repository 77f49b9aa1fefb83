// The network on a few rows: from what the canvas holds to the head's parameters.
//
// A row is one step of one slot, and rows are not slots: several successive steps of a slot may be
// rows of one pass, in order, as long as the values before each are known, or guessed. That is
// prefill, with the arithmetic of stepping.
//
// A team runs a pass together: each member computes some of the columns of every product and some
// of the heads, and meets the others where it needs what they have computed. A team of one needs
// no meetings. No sum is ever split between members, so the result does not depend on the team.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attention.h"
#include "team.h"

namespace scanline {

class Network {
public:
    Network(const Config& config, const Weights& weights)
        : config_(config), sizes_(config), format_(precision(config)),
          embedding_(config, weights, sizes_.embedded, sizes_.model, sizes_.wide),
          norm_(weights.norm_weight, weights.norm_bias, config.d_model, sizes_.wide),
          predictor_(config.head_outputs, config.d_model, head_format(config, weights)) {
        predictor_.fill(weights.head_weight, weights.head_bias, config.head_outputs,
                        config.d_model);
        for (int l = 0; l < config.n_layers; ++l)
            layers_.emplace_back(config, weights.layers[l], sizes_, first_format(config, weights, l));
    }

    const Sizes& sizes() const { return sizes_; }
    const InputFormat& format() const { return format_; }

    // Run the team's pass, leaving the head's parameters of row r at `parameters(team, r)`. All
    // members call this; `states` holds every slot's.
    void run(const Arrays& arrays, float* states, const Seat& seat) const {
        Team& team = seat.team;
        const Row* const rows = team.pass.rows;
        const int count = team.pass.row_count;
        Member& member = seat.member;
        const Tiles tiles(count);
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
        float* rings = states + sizes_.rings;
        for (int l = 0; l < config_.n_layers; ++l) {
            const Layer& layer = layers_[static_cast<size_t>(l)];
            if (config_.pre_norm) norm_rows(layer.norm1, count, member, false, format_);
            if (sizes_.ring) convolve_rows(layer.conv1, rows, count, rings, seat, format_);
            rings += sizes_.ring * sizes_.wide;
            attend(l, team.pass, states, seat);
            seat.meet();
            multiply(layer.out, team.attended.get(), sizes_.qkv(), seat, keep);
            seat.meet();
            add_rows(count, team, member);
            norm_rows(config_.pre_norm ? layer.norm2 : layer.norm1, count, member,
                      !config_.pre_norm, layer.linear1.format());
            if (sizes_.ring)
                convolve_rows(layer.conv2, rows, count, rings, seat, layer.linear1.format());
            rings += sizes_.ring * sizes_.wide;
            multiply(layer.linear1, member.input.get(), sizes_.wide, seat, activate);
            seat.meet();
            multiply(layer.linear2, team.hidden.get(), sizes_.hidden, seat, keep);
            seat.meet();
            add_rows(count, team, member);
            if (!config_.pre_norm) norm_rows(layer.norm2, count, member, true, format_);
        }
        norm_rows(norm_, count, member, false, predictor_.format());
        multiply(predictor_, member.input.get(), sizes_.wide, seat, [&](int row, int column, Vec v) {
            store(parameters(team, row) + column, v);
        });
        seat.meet();
    }

    // Add what the last pass's runs still owe to the states.
    void settle(float* states, const Seat& seat) const {
        const Pass& pass = seat.team.pass;
        for (int l = 0; l < config_.n_layers; ++l)
            for (int i = 0; i < pass.run_count; ++i) {
                if (!pass.runs[i].late) continue;
                for_heads(pass.runs[i], l, states, seat,
                          [&](const HeadState& state, const Late& late, int) {
                              state.add(late.steps(), pass.runs[i].late);
                          });
            }
    }

    // How many threads, of at most `most`, take a pass of so many rows in the least time: what the
    // busiest computes, of each product whole panels, and the meetings between. All in bytes of
    // weights, with which up to `SHARED_ROWS` rows are computed as fast as they are read.
    int best_team(int most, int rows) const {
        constexpr double MEETING = 2048;  // for each arrival; on many cores not measured yet
        const double each = std::max(1.0, static_cast<double>(rows) / SHARED_ROWS);
        int best = 1;
        double least = std::numeric_limits<double>::infinity();
        for (int members = 1; members <= most; ++members) {
            const auto share = [&](const Packed& product, int parts) {
                return static_cast<double>(product.bytes()) / parts * ((parts + members - 1) / members);
            };
            double busiest = share(predictor_, predictor_.panels());
            for (const Layer& layer : layers_)
                busiest += share(layer.qkv, sizes_.units) + share(layer.out, layer.out.panels()) +
                           share(layer.linear1, layer.linear1.panels()) +
                           share(layer.linear2, layer.linear2.panels());
            const double meetings = members == 1 ? 0 : 4.0 * sizes_.layers + 3;
            const double cost = busiest * each + meetings * MEETING * members;
            if (cost < least) least = cost, best = members;
        }
        return best;
    }

    float* parameters(Team& team, int row) const {
        return team.parameters.get() + static_cast<size_t>(row) * sizes_.parameters;
    }

private:
    static Format precision(const Config& c) { return static_cast<Format>(c.precision); }

    // Where intensities come in by a linear map, eight bits are too coarse at both ends: for what the
    // first feed-forward network sees, which compares neighbouring ones, and for the means of
    // logistics that are as narrow as an intensity.
    static Format first_format(const Config& c, const Weights& w, int layer) {
        return layer == 0 && w.linear_weight ? finer(c) : precision(c);
    }
    static Format head_format(const Config& c, const Weights& w) {
        return !c.categorical && w.linear_weight ? finer(c) : precision(c);
    }
    static Format finer(const Config& c) {
        return whole(precision(c)) ? Format::INT16 : Format::FLOAT32;
    }

    struct Layer {
        Packed qkv, out, linear1, linear2;
        Norm norm1, norm2;
        Table conv1, conv2;

        Layer(const Config& c, const LayerWeights& w, const Sizes& s, Format first)
            : qkv(3 * s.qkv(), c.d_model, precision(c)), out(c.d_model, s.qkv(), precision(c)),
              linear1(c.d_ff, c.d_model, first), linear2(c.d_model, s.hidden, precision(c)),
              norm1(w.norm1_weight, w.norm1_bias, c.d_model, s.wide),
              norm2(w.norm2_weight, w.norm2_bias, c.d_model, s.wide),
              conv1(w.conv1_weight, TAPS, c.d_model, s.wide),
              conv2(w.conv2_weight, TAPS, c.d_model, s.wide) {
            // Where feature i of the heads laid end to end lies, each head padded.
            const auto place = [&](int i) { return i / s.head * s.head_padded + i % s.head; };
            const auto row = [&](int o) { return static_cast<size_t>(o) * c.d_model; };
            const float* weights[] = {w.query_weight, w.key_weight, w.value_weight};
            const float* biases[] = {w.query_bias, w.key_bias, w.value_bias};
            for (int part = 0; part < 3; ++part) {
                // φ of padding must be 0, so that it adds nothing to the denominator.
                for (int o = 0; part < 2 && o < s.qkv(); ++o)
                    qkv.set_bias(part * s.qkv() + o, NOTHING);
                for (int o = 0; o < c.d_model; ++o)
                    qkv.set(part * s.qkv() + place(o), weights[part] + row(o), c.d_model,
                            biases[part][o], [](int i) { return i; });
            }
            for (int o = 0; o < c.d_model; ++o)
                out.set(o, w.out_weight + row(o), c.d_model, w.out_bias[o], place);
            linear1.fill(w.linear1_weight, w.linear1_bias, c.d_ff, c.d_model);
            linear2.fill(w.linear2_weight, w.linear2_bias, c.d_model, c.d_ff);
        }
    };

    // This member's share of a product of the pass's rows, which are `width` wide.
    template <typename Take>
    void multiply(const Packed& product, const std::byte* rows, int width, const Seat& seat,
                  const Take& take) const {
        const size_t stride = product.format().stride(width);
        const int count = seat.team.pass.row_count;
        product.multiply(product.complete(rows, stride, count, seat.member.input.get()), stride, count,
                         seat.share(product.panels()), take);
    }

    // q, k, v of this member's heads, then their states and outputs.
    void attend(int layer, const Pass& pass, float* states, const Seat& seat) const {
        const int width = sizes_.qkv(), panels = sizes_.unit / PANEL;
        const size_t stride = static_cast<size_t>(sizes_.qkv_stride());
        float* const qkv = seat.team.qkv.get();
        const Range units = seat.share(sizes_.units);
        const Packed& product = layers_[static_cast<size_t>(layer)].qkv;
        std::byte* const own = seat.member.input.get();
        const size_t wide = format_.stride(sizes_.wide);
        const std::byte* const input = product.complete(own, wide, pass.row_count, own);
        for (int part = 0; part < 3; ++part) {
            const int first = part * sizes_.units * panels;
            product.multiply(
                input, wide, pass.row_count,
                {first + units.begin * panels, first + units.end * panels},
                [&](int row, int column, Vec v) {
                    float* const place = qkv + row * stride + column;
                    store(place, part < 2 ? feature_map(v) : v);
                });
        }
        const size_t out = format_.stride(width);
        for (int i = 0; i < pass.run_count; ++i) {
            const Run& run = pass.runs[i];
            const float* const first = qkv + run.first * stride;
            std::byte* const output = seat.team.attended.get() + run.first * out;
            for_heads(run, layer, states, seat, [&](const HeadState& state, const Late& late,
                                                    int column) {
                if (run.late) state.add(late.steps(), run.late);
                for (int done = 0; done < run.count; done += TOGETHER) {
                    const int some = std::min(TOGETHER, run.count - done);
                    const float* const q = first + done * stride + column;
                    state.attend(q, {q + width, q + 2 * width, stride}, some, std::min(some, run.kept - done),
                                 [&](int row, int j, Vec v) {
                                     format_.put(output + (done + row) * out, column + j, v);
                                 });
                }
                for (int row = run.kept; row < run.count; ++row)
                    late.put(row - run.kept, first + row * stride + column, width);
            });
        }
    }

    // Where a head's keys and values of a run's guessed rows lie, until it is known who was right.
    struct Late {
        float* k;
        int width, size;

        KeysValues steps() const { return {k, k + width, static_cast<size_t>(2 * width)}; }
        void put(int row, const float* q, int behind) const {
            float* const place = k + static_cast<size_t>(row) * 2 * static_cast<size_t>(width);
            std::copy_n(q + behind, size, place);
            std::copy_n(q + 2 * behind, size, place + width);
        }
    };

    // Call `work(state, late, column)` for each of this member's heads of a run's slot; `column` is
    // where the head begins among all of them.
    template <typename Work>
    void for_heads(const Run& run, int layer, float* states, const Seat& seat,
                   const Work& work) const {
        const int width = sizes_.qkv(), heads = sizes_.unit / sizes_.head_padded;
        const Range units = seat.share(sizes_.units);
        const int last = std::min(units.end * heads, config_.n_heads);
        float* const slot = states + static_cast<size_t>(run.slot) * sizes_.slot_state +
                            static_cast<size_t>(layer * config_.n_heads) * sizes_.head_state;
        float* const late = seat.team.late.get() +
                            (static_cast<size_t>(layer) * MAX_ROWS + static_cast<size_t>(run.place)) *
                                2 * static_cast<size_t>(width);
        for (int head = units.begin * heads; head < last; ++head) {
            const int column = head * sizes_.head_padded;
            work(HeadState(slot + static_cast<size_t>(head) * sizes_.head_state, sizes_.head,
                           sizes_.head_padded),
                 Late{late + column, width, sizes_.head_padded}, column);
        }
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
        const int stride = steps_per_pixel(config_);
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
