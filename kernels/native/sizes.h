// Padded sizes of a network's buffers and state.
#pragma once

#include "abi.h"
#include "pass.h"

namespace scanline {

struct Sizes {
    int layers;
    int model;               // d_model padded to whole panels
    int embedded;            // the embedding's part of d_model, padded to whole vectors
    int head, head_padded;   // head size K = V, and padded to whole vectors
    int unit, units;         // smallest number of q (k, v) outputs with whole panels and whole heads
    int out_inputs, linear2_inputs;  // input counts that set the integers' ranges, the same on every CPU
    int hidden, parameters;  // d_ff and the head's outputs, padded to whole panels
    size_t head_state;       // floats in a head's state: kv [K, V padded], then z [K padded]
    int ring;                // steps in a short convolution's ring buffer, 0 without convolutions
    size_t rings;            // offset of the ring buffers in a slot's state, after [L, H] head states
    size_t slot_state;       // floats in a slot's state, which ends with [L, 2] rings of [ring, model]

    explicit Sizes(const Config& c)
        : layers(c.n_layers), model(round_up(c.d_model, PANEL)),
          embedded(round_up(c.sinusoidal ? c.d_model / 2 : c.d_model, LANES)),
          head(c.d_model / c.n_heads), head_padded(round_up(head, LANES)),
          unit(whole_heads(head_padded, PANEL)), units((c.n_heads * head_padded + unit - 1) / unit),
          hidden(round_up(c.d_ff, PANEL)), parameters(round_up(c.head_outputs, PANEL)),
          head_state(static_cast<size_t>(head + 1) * static_cast<size_t>(head_padded)),
          ring(c.short_conv ? c.width + 1 + MAX_ROWS : 0),
          rings(head_state * static_cast<size_t>(c.n_heads * c.n_layers)),
          slot_state(rings + size_t{2} * c.n_layers * ring * model) {
        // Padded as for vectors of 16 lanes on every CPU, because drawn bytes depend on these limits.
        constexpr int WIDEST = 16, WIDEST_PANEL = 32;
        const int padded = round_up(head, WIDEST);
        out_inputs = round_up(c.n_heads * padded, whole_heads(padded, WIDEST_PANEL));
        linear2_inputs = round_up(c.d_ff, WIDEST_PANEL);
    }
    int qkv() const { return units * unit; }  // width of q, of k and of v
    int qkv_stride() const { return 3 * qkv() + 16; }  // padded, so that rows seldom share cache sets

private:
    // Return the smallest number of outputs with whole panels and whole heads.
    static int whole_heads(int head_padded, int panel) {
        int outputs = panel;
        while (outputs % head_padded) outputs += panel;
        return outputs;
    }
};

}  // namespace scanline
