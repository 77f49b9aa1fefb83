// The layers other than matrix products and attention: embedding tables, the input embedding and layer
// norm.
#pragma once

#include <algorithm>

#include "sizes.h"

namespace scanline {

// Number of network steps per pixel.
inline int steps_per_pixel(const Config& config) { return config.channels / config.step_channels; }

// Offsets (row, column) of a pixel's causal neighbours, in the order of model/config.py.
constexpr int NEIGHBOURS = 17;
constexpr int NEIGHBOUR_OFFSETS[NEIGHBOURS][2] = {
    {0, -3},  {0, -2},  {0, -1},  {-1, -3}, {-1, -2}, {-1, -1}, {-1, 0}, {-1, 1}, {-1, 2},
    {-1, 3},  {-2, -3}, {-2, -2}, {-2, -1}, {-2, 0},  {-2, 1},  {-2, 2}, {-2, 3},
};
constexpr int TAPS = 5;  // of the short convolution
constexpr int OUTSIDE = 256;  // id of a neighbour outside the image or not yet decided

// A matrix whose rows are padded to `stride` floats. False if the network has no such table.
class Table {
public:
    // With `transposed`, `source` is a linear map's [columns, rows] weight, and row i of the table gets
    // the weights of input i.
    Table(const float* source, int rows, int columns, int stride, bool transposed = false)
        : stride_(static_cast<size_t>(stride)), data_(source ? static_cast<size_t>(rows) * stride_ : 0),
          present_(source != nullptr) {
        const size_t next_row = transposed ? 1 : columns, next_column = transposed ? rows : 1;
        for (size_t r = 0; source && r < static_cast<size_t>(rows); ++r)
            for (size_t c = 0; c < static_cast<size_t>(columns); ++c)
                data_.get()[r * stride_ + c] = source[r * next_row + c * next_column];
    }

    explicit operator bool() const { return present_; }
    const float* operator[](int row) const { return data_.get() + static_cast<size_t>(row) * stride_; }

    void add(int row, float* x) const {
        for (size_t i = 0; i < stride_; i += LANES) store(x + i, load(x + i) + load((*this)[row] + i));
    }
    void add_scaled(int row, float factor, float* x) const {
        const Vec f = broadcast(factor);
        for (size_t i = 0; i < stride_; i += LANES)
            store(x + i, fma(f, load((*this)[row] + i), load(x + i)));
    }

private:
    size_t stride_;
    Buffer<float> data_;
    bool present_;
};

// Input embedding of a step: its values (model/inputs.py), position and label.
class Embedding {
public:
    Embedding(const Config& c, const Weights& w, const Sizes& s)
        : config_(c), pixels_(c.height * c.width), steps_per_pixel_(steps_per_pixel(c)),
          neighbours_(NEIGHBOURS * c.channels + steps_per_pixel_ - 1),
          size_(c.sinusoidal ? c.d_model / 2 : c.d_model),
          values_(w.value_embedding, 256, size_, s.embedded),
          start_(w.start, 1, c.d_model, s.model),
          tables_(w.tables, neighbours_ * (OUTSIDE + 1), size_, s.embedded),
          linear_(w.linear_weight, 2 * neighbours_, size_, s.embedded, true),
          linear_bias_(w.linear_bias, 1, size_, s.embedded),
          code_(w.code, pixels_ * steps_per_pixel_, size_, size_),
          row_(w.row, c.height, c.d_model, s.model), column_(w.column, c.width, c.d_model, s.model),
          label_(w.label, c.classes + 1, c.d_model, s.model), model_(s.model) {}

    void embed(const Arrays& arrays, int slot, int step, float* x) const {
        const size_t values = static_cast<size_t>(pixels_ * config_.channels);
        const uint8_t* canvas = arrays.canvas + static_cast<size_t>(slot) * values;
        std::fill_n(x, model_, 0.0f);  // including the padding, which may hold another row's values
        if (config_.neighbourhood) add_neighbourhood(canvas, step, x);
        else values_.add(canvas[step > 0 ? step - 1 : 0], x);
        if (code_) std::copy_n(code_[step], size_, x + size_);
        if (start_ && step == 0) std::copy_n(start_[0], model_, x);
        if (row_) {  // only with one step per pixel
            row_.add(step / config_.width, x);
            column_.add(step % config_.width, x);
        }
        if (label_) {
            const int label = arrays.label[slot];
            label_.add(label >= 0 && label < config_.classes ? label : config_.classes, x);
        }
    }

private:
    void add_neighbourhood(const uint8_t* canvas, int step, float* x) const {
        const int pixel = step / steps_per_pixel_, decided = step % steps_per_pixel_;
        const int row = pixel / config_.width, column = pixel % config_.width;
        if (linear_bias_) linear_bias_.add(0, x);
        int neighbour = 0;
        for (const auto& offset : NEIGHBOUR_OFFSETS) {
            const int r = row + offset[0], c = column + offset[1];
            const bool inside = r >= 0 && c >= 0 && c < config_.width;
            const int first = (r * config_.width + c) * config_.channels;
            for (int channel = 0; channel < config_.channels; ++channel)
                add_neighbour(neighbour++, inside ? canvas[first + channel] : OUTSIDE, x);
        }
        // With one value per step, the pixel's own earlier channels are neighbours as well.
        for (int channel = 0; channel + 1 < steps_per_pixel_; ++channel)
            add_neighbour(neighbour++,
                          channel < decided ? canvas[pixel * config_.channels + channel] : OUTSIDE, x);
    }

    void add_neighbour(int neighbour, int id, float* x) const {
        if (tables_) tables_.add(neighbour * (OUTSIDE + 1) + id, x);
        else if (id == OUTSIDE) linear_.add(neighbours_ + neighbour, x);
        else linear_.add_scaled(neighbour, static_cast<float>(id) / 127.5f - 1.0f, x);
    }

    const Config config_;
    const int pixels_, steps_per_pixel_, neighbours_, size_;
    const Table values_, start_, tables_, linear_, linear_bias_, code_;
    const Table row_, column_, label_;
    const int model_;
};

// Layer norm. Weight and bias are padded with zeros, so the result's padding is zero.
class LayerNorm {
public:
    LayerNorm(const float* weight, const float* bias, int size, int padded)
        : size_(size), padded_(padded), weight_(weight, 1, size, padded),
          bias_(bias, 1, size, padded), mask_(static_cast<size_t>(padded)) {
        for (int i = 0; i < size; ++i) mask_.get()[i] = 1.0f;
    }

    template <typename Emit>
    void apply(const float* x, Emit emit) const {
        const Vec mean = broadcast(row_sum(x, padded_) / static_cast<float>(size_));
        Lanes squares;
        for_each_vector(padded_, [&](int i, auto part) ALWAYS_INLINE {
            const Vec centred = (load(x + i) - mean) * load(mask_.get() + i);
            squares[part] = fma(centred, centred, squares[part]);
        });
        const float variance = horizontal_sum(squares) / static_cast<float>(size_);
        // If the variance is infinite, `variance * 0` makes the result NaN, as in PyTorch, instead of
        // 0.
        const Vec scale = broadcast(1.0f / std::sqrt(variance + 1e-5f) + variance * 0.0f);
        for (int i = 0; i < padded_; i += LANES) {
            const Vec centred = (load(x + i) - mean) * scale;
            emit(i, fma(centred, load(weight_[0] + i), load(bias_[0] + i)));
        }
    }

private:
    int size_, padded_;
    Table weight_, bias_;
    Buffer<float> mask_;
};

}  // namespace scanline
