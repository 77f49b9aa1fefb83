// The network on the rows of a pass: from the canvas to the head's parameters.
//
// A row is one step of one slot. Several consecutive steps of a slot may be rows of one pass if the
// values before each are known or predicted. Prefill is the same computation with known values.
//
// A team computes a pass together: each worker computes some columns of every product and some of the
// heads, with a barrier wherever it needs the others' results. No sum is split between workers, so the
// result does not depend on the size of the team. A team of one needs no barriers.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attention.h"
#include "layers.h"
#include "team.h"

namespace scanline {

// Padding of a head's queries and keys gets this bias. `feature_map` must map it to 0, so that it adds
// nothing to the denominator. elu + 1 does, because e^x underflows.
constexpr float PADDING_BIAS = -1e30f;

class Network {
public:
    Network(const Config& config, const Weights& weights)
        : config_(config), sizes_(config), format_(precision(config)),
          embedding_(config, weights, sizes_),
          norm_(weights.norm_weight, weights.norm_bias, config.d_model, sizes_.model),
          head_product_(config.head_outputs, config.d_model, config.d_model,
                        head_format(config, weights)) {
        head_product_.fill(weights.head_weight, weights.head_bias, config.head_outputs,
                           config.d_model);
        for (int l = 0; l < config.n_layers; ++l)
            layers_.emplace_back(config, weights.layers[l], sizes_, first_format(config, weights, l));
    }

    const Sizes& sizes() const { return sizes_; }
    const InputFormat& format() const { return format_; }

    // Compute the team's pass; the head's parameters of row r are then at `parameters(team, r)`. All
    // workers of the team call this. `states` holds the states of all slots.
    void run(const Arrays& arrays, float* states, const Worker& worker) const {
        Team& team = worker.team;
        const Row* const rows = team.pass.rows;
        const int count = team.pass.row_count;
        WorkerBuffers& buffers = worker.buffers;
        const TileConfig tiles(count);
        const size_t model = static_cast<size_t>(sizes_.model);
        const size_t hidden_stride = format_.stride(sizes_.hidden);
        const auto store_added = [&](int row, int column, Vec v) {
            store(team.added.get() + row * model + column, v);
        };
        const auto activate = [&](int row, int column, Vec v) {
            format_.store_vector(team.hidden.get() + row * hidden_stride, column,
                                 config_.gelu ? gelu(v) : relu(v));
        };
        for (int r = 0; r < count; ++r)
            embedding_.embed(arrays, rows[r].slot, rows[r].step, buffers.x.get() + r * model);
        if (!config_.pre_norm) store_rows(count, buffers);
        float* rings = states + sizes_.rings;
        for (int l = 0; l < config_.n_layers; ++l) {
            const Layer& layer = layers_[static_cast<size_t>(l)];
            if (config_.pre_norm) norm_rows(layer.norm1, count, buffers, false, format_);
            if (sizes_.ring) convolve_rows(layer.conv1, rows, count, rings, worker, format_);
            rings += sizes_.ring * sizes_.model;
            attend(l, team.pass, states, worker);
            worker.barrier();
            multiply(layer.out, team.attended.get(), sizes_.qkv(), worker, store_added);
            worker.barrier();
            add_residual(count, team, buffers);
            norm_rows(config_.pre_norm ? layer.norm2 : layer.norm1, count, buffers,
                      !config_.pre_norm, layer.linear1.format());
            if (sizes_.ring)
                convolve_rows(layer.conv2, rows, count, rings, worker, layer.linear1.format());
            rings += sizes_.ring * sizes_.model;
            multiply(layer.linear1, buffers.input.get(), sizes_.model, worker, activate);
            worker.barrier();
            multiply(layer.linear2, team.hidden.get(), sizes_.hidden, worker, store_added);
            worker.barrier();
            add_residual(count, team, buffers);
            if (!config_.pre_norm) norm_rows(layer.norm2, count, buffers, true, format_);
        }
        norm_rows(norm_, count, buffers, false, head_product_.format());
        multiply(head_product_, buffers.input.get(), sizes_.model, worker, [&](int row, int column, Vec v) {
            store(parameters(team, row) + column, v);
        });
        worker.barrier();
    }

    // Add the last pass's pending keys and values to the states.
    void commit(float* states, const Worker& worker) const {
        const Pass& pass = worker.team.pass;
        for (int l = 0; l < config_.n_layers; ++l)
            for (int i = 0; i < pass.run_count; ++i) {
                if (!pass.runs[i].pending) continue;
                for_each_head(pass.runs[i], l, states, worker,
                              [&](const HeadState& state, const PendingRows& pending, int) {
                                  state.add(pending.steps(), pass.runs[i].pending);
                              });
            }
    }

    // Estimate the team size of at most `max_workers` that computes a pass of `rows` rows fastest. The
    // cost is that of the busiest worker, which computes whole panels of each product, plus the
    // barriers. Its unit is bytes of weights read; up to SHARED_ROWS rows are computed in the time of
    // reading them.
    int best_team_size(int max_workers, int rows) const {
        constexpr double BARRIER_COST = 2048;  // per worker; not yet measured on many cores
        const double cost_per_byte = std::max(1.0, static_cast<double>(rows) / SHARED_ROWS);
        int best = 1;
        double lowest = std::numeric_limits<double>::infinity();
        for (int workers = 1; workers <= max_workers; ++workers) {
            const auto bytes = [&](const PackedLinear& product, int parts) {
                return static_cast<double>(product.bytes(rows)) / parts *
                       ((parts + workers - 1) / workers);
            };
            double busiest = bytes(head_product_, head_product_.panels());
            for (const Layer& layer : layers_)
                busiest += bytes(layer.qkv, sizes_.units) + bytes(layer.out, layer.out.panels()) +
                           bytes(layer.linear1, layer.linear1.panels()) +
                           bytes(layer.linear2, layer.linear2.panels());
            const double barriers = workers == 1 ? 0 : 4.0 * sizes_.layers + 3;
            const double cost = busiest * cost_per_byte + barriers * BARRIER_COST * workers;
            if (cost < lowest) lowest = cost, best = workers;
        }
        return best;
    }

    // Bytes of the weights and of the attention's sums that a pass moves: weights are read, sums are read
    // and written.
    size_t bytes(const Pass& pass) const {
        size_t total = head_product_.bytes(pass.row_count);
        for (const Layer& layer : layers_)
            for (const PackedLinear* product : {&layer.qkv, &layer.out, &layer.linear1, &layer.linear2})
                total += product->bytes(pass.row_count);
        for (int i = 0; i < pass.run_count; ++i)
            if (pass.runs[i].count) total += 2 * sizes_.rings * sizeof(float);
        return total;
    }

    float* parameters(Team& team, int row) const {
        return team.parameters.get() + static_cast<size_t>(row) * sizes_.parameters;
    }

private:
    static Format precision(const Config& c) { return static_cast<Format>(c.precision); }

    // If intensities enter through a linear map, 8 bits are too coarse for the first layer's
    // feed-forward network, which compares neighbouring intensities, and for the head's means, because
    // its logistics may be as narrow as one intensity.
    static Format first_format(const Config& c, const Weights& w, int layer) {
        return layer == 0 && w.linear_weight ? finer(c) : precision(c);
    }
    static Format head_format(const Config& c, const Weights& w) {
        return !c.categorical && w.linear_weight ? finer(c) : precision(c);
    }
    static Format finer(const Config& c) {
        return is_integer(precision(c)) ? Format::INT16 : Format::FLOAT32;
    }

    struct Layer {
        PackedLinear qkv, out, linear1, linear2;
        LayerNorm norm1, norm2;
        Table conv1, conv2;

        Layer(const Config& c, const LayerWeights& w, const Sizes& s, Format first)
            : qkv(3 * s.qkv(), c.d_model, c.d_model, precision(c)),
              out(c.d_model, s.qkv(), s.out_inputs, precision(c)),
              linear1(c.d_ff, c.d_model, c.d_model, first),
              linear2(c.d_model, s.hidden, s.linear2_inputs, precision(c)),
              norm1(w.norm1_weight, w.norm1_bias, c.d_model, s.model),
              norm2(w.norm2_weight, w.norm2_bias, c.d_model, s.model),
              conv1(w.conv1_weight, TAPS, c.d_model, s.model),
              conv2(w.conv2_weight, TAPS, c.d_model, s.model) {
            // Position of feature i of the concatenated heads, with each head padded.
            const auto position = [&](int i) { return i / s.head * s.head_padded + i % s.head; };
            const auto row = [&](int o) { return static_cast<size_t>(o) * c.d_model; };
            const float* weights[] = {w.query_weight, w.key_weight, w.value_weight};
            const float* biases[] = {w.query_bias, w.key_bias, w.value_bias};
            for (int part = 0; part < 3; ++part) {
                for (int o = 0; part < 2 && o < s.qkv(); ++o)
                    qkv.set_bias(part * s.qkv() + o, PADDING_BIAS);
                for (int o = 0; o < c.d_model; ++o)
                    qkv.set(part * s.qkv() + position(o), weights[part] + row(o), c.d_model,
                            biases[part][o], [](int i) { return i; });
            }
            for (int o = 0; o < c.d_model; ++o)
                out.set(o, w.out_weight + row(o), c.d_model, w.out_bias[o], position);
            linear1.fill(w.linear1_weight, w.linear1_bias, c.d_ff, c.d_model);
            linear2.fill(w.linear2_weight, w.linear2_bias, c.d_model, c.d_ff);
        }
    };

    // Compute this worker's part of a product with the pass's rows, which have `width` elements.
    template <typename Emit>
    void multiply(const PackedLinear& product, const std::byte* rows, int width, const Worker& worker,
                  const Emit& emit) const {
        const size_t stride = product.format().stride(width);
        const int count = worker.team.pass.row_count;
        product.multiply(product.finish(rows, stride, count, worker.buffers.input.get()), stride,
                         count, worker.part(product.panels()), emit);
    }

    // Compute q, k and v of this worker's heads, then update their states and compute their outputs.
    void attend(int layer, const Pass& pass, float* states, const Worker& worker) const {
        const int width = sizes_.qkv(), panels = sizes_.unit / PANEL;
        const size_t stride = static_cast<size_t>(sizes_.qkv_stride());
        float* const qkv = worker.team.qkv.get();
        const Range units = worker.part(sizes_.units);
        const PackedLinear& product = layers_[static_cast<size_t>(layer)].qkv;
        std::byte* const rows = worker.buffers.input.get();
        const size_t input_stride = format_.stride(sizes_.model);
        const std::byte* const input = product.finish(rows, input_stride, pass.row_count, rows);
        for (int part = 0; part < 3; ++part) {
            const int first = part * sizes_.units * panels;
            product.multiply(
                input, input_stride, pass.row_count,
                {first + units.begin * panels, first + units.end * panels},
                [&](int row, int column, Vec v) {
                    store(qkv + row * stride + column, part < 2 ? feature_map(v) : v);
                });
        }
        const size_t out = format_.stride(width);
        for (int i = 0; i < pass.run_count; ++i) {
            const Run& run = pass.runs[i];
            const float* const first = qkv + run.first * stride;
            std::byte* const output = worker.team.attended.get() + run.first * out;
            for_each_head(run, layer, states, worker, [&](const HeadState& state,
                                                          const PendingRows& pending, int column) {
                if (run.pending) state.add(pending.steps(), run.pending);
                for (int done = 0; done < run.count; done += MAX_STEPS_AT_ONCE) {
                    const int count = std::min(MAX_STEPS_AT_ONCE, run.count - done);
                    const float* const q = first + done * stride + column;
                    state.attend(q, {q + width, q + 2 * width, stride}, count,
                                 std::min(count, run.confirmed - done), [&](int row, int j, Vec v) {
                                     format_.store_vector(output + (done + row) * out, column + j, v);
                                 });
                }
                for (int row = run.confirmed; row < run.count; ++row)
                    pending.store(row - run.confirmed, first + row * stride + column, width);
            });
        }
    }

    // A head's keys and values of a run's rows with predicted inputs, until the predictions are
    // checked.
    struct PendingRows {
        float* k;
        int width, size;

        KeysValues steps() const { return {k, k + width, static_cast<size_t>(2 * width)}; }
        // Copy a row's key and value, which follow its query at distances `offset` and 2 · `offset`.
        void store(int row, const float* q, int offset) const {
            float* const target = k + static_cast<size_t>(row) * 2 * static_cast<size_t>(width);
            std::copy_n(q + offset, size, target);
            std::copy_n(q + 2 * offset, size, target + width);
        }
    };

    // Call `work(state, pending, column)` for each of this worker's heads of a run's slot, where
    // `column` is the offset of the head among all heads.
    template <typename Work>
    void for_each_head(const Run& run, int layer, float* states, const Worker& worker,
                       const Work& work) const {
        const int width = sizes_.qkv(), heads = sizes_.unit / sizes_.head_padded;
        const Range units = worker.part(sizes_.units);
        const int last = std::min(units.end * heads, config_.n_heads);
        float* const slot = states + static_cast<size_t>(run.slot) * sizes_.slot_state +
                            static_cast<size_t>(layer * config_.n_heads) * sizes_.head_state;
        const auto row = static_cast<size_t>(layer) * MAX_ROWS + static_cast<size_t>(run.pending_row);
        float* const pending = worker.team.pending.get() + row * 2 * static_cast<size_t>(width);
        for (int head = units.begin * heads; head < last; ++head) {
            const int column = head * sizes_.head_padded;
            work(HeadState(slot + static_cast<size_t>(head) * sizes_.head_state, sizes_.head,
                           sizes_.head_padded),
                 PendingRows{pending + column, width, sizes_.head_padded}, column);
        }
    }

    // Add to the residual stream. Each worker keeps its own copy of the whole stream.
    void add_residual(int count, const Team& team, WorkerBuffers& buffers) const {
        float* const x = buffers.x.get();
        for (int i = 0; i < count * sizes_.model; i += LANES)
            store(x + i, load(x + i) + load(team.added.get() + i));
    }

    // Normalise the rows into the next product's input and, if `in_place` (post-norm), into the stream.
    void norm_rows(const LayerNorm& norm, int count, WorkerBuffers& buffers, bool in_place,
                   const InputFormat& format) const {
        const size_t stride = format.stride(sizes_.model);
        for (int r = 0; r < count; ++r) {
            float* const x = buffers.x.get() + r * sizes_.model;
            std::byte* const input = buffers.input.get() + r * stride;
            float* const normalised = buffers.normalised.get() + r * sizes_.model;
            norm.apply(x, [&](int i, Vec v) {
                format.store_vector(input, i, v);
                if (in_place) store(x + i, v);
                else if (sizes_.ring) store(normalised + i, v);
            });
        }
    }

    // Apply the short convolution (kernels/short_conv.py) to the next product's input. Steps of this
    // pass are read from the worker's own rows, earlier ones from the ring buffers. The rings are long
    // enough that the entries which the leader writes are not read before the next barrier.
    void convolve_rows(const Table& weights, const Row* rows, int count, float* rings,
                       const Worker& worker, const InputFormat& format) const {
        WorkerBuffers& buffers = worker.buffers;
        const float* const own = buffers.normalised.get();
        const int columns = config_.width, D = sizes_.model;
        const int distances[TAPS] = {0, 1, columns + 1, columns, columns - 1};
        for (int r = 0; r < count; ++r) {
            const int step = rows[r].step, column = step % columns;
            float* const ring = rings + static_cast<size_t>(rows[r].slot) * sizes_.slot_state;
            const float* taps[TAPS];
            for (int tap = 0; tap < TAPS; ++tap) {
                const int distance = distances[tap], before = r - distance;
                const bool outside = step < distance || ((tap == 1 || tap == 2) && column == 0) ||
                                     (tap == 4 && column == columns - 1);
                if (outside) taps[tap] = nullptr;
                else if (before >= 0 && rows[before].slot == rows[r].slot)
                    taps[tap] = own + before * D;
                else taps[tap] = ring + (step - distance) % sizes_.ring * D;
            }
            std::byte* const input = buffers.input.get() + r * format.stride(D);
            for (int i = 0; i < D; i += LANES) {
                Vec y = load(weights[0] + i) * load(taps[0] + i);
                for (int tap = 1; tap < TAPS; ++tap)
                    if (taps[tap]) y = fma(load(weights[tap] + i), load(taps[tap] + i), y);
                format.store_vector(input, i, y);
            }
            if (worker.is_leader()) std::copy_n(own + r * D, D, ring + step % sizes_.ring * D);
        }
    }

    void store_rows(int count, WorkerBuffers& buffers) const {
        for (int r = 0; r < count; ++r)
            for (int i = 0; i < sizes_.model; i += LANES)
                format_.store_vector(buffers.input.get() + r * format_.stride(sizes_.model), i,
                                     load(buffers.x.get() + r * sizes_.model + i));
    }

    const Config config_;
    const Sizes sizes_;
    const InputFormat format_;
    const Embedding embedding_;
    std::vector<Layer> layers_;
    const LayerNorm norm_;
    PackedLinear head_product_;
};

}  // namespace scanline
