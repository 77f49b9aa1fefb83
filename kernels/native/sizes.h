// Padded sizes of a network's buffers and state.
#pragma once

#include "pass.h"

namespace scanline {

struct Sizes {
    int layers;
    int model, embedded;     // d_model and the embedding's part of it, padded to whole vectors
    int wide;                // d_model padded to whole panels
    int head, head_padded;   // head size K = V, and padded to whole vectors
    int unit, units;         // smallest number of q (k, v) outputs with whole panels and whole heads
    int hidden, parameters;  // d_ff and the head's outputs, padded to whole panels
    size_t head_state;       // floats in a head's state: kv [K, V padded], then z [K padded]
    int ring;                // steps in a short convolution's ring buffer, 0 without convolutions
    size_t rings;            // offset of the ring buffers in a slot's state, after [L, H] head states
    size_t slot_state;       // floats in a slot's state, which ends with [L, 2] rings of [ring, wide]

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
    int qkv_stride() const { return 3 * qkv() + 16; }  // an odd number of cache lines
};

}  // namespace scanline
