// Structs of the decoder's C ABI.
#pragma once

#include <cstdint>

extern "C" {

// kernels/native/abi.py reads the names of all structs' fields. In each struct, either all fields are
// int32_t or all are pointers.

// Sizes and options of a decoder.
struct Config {
    int32_t height, width, channels, step_channels;
    int32_t neighbourhood, sinusoidal, categorical, pre_norm, gelu;
    int32_t start_given, first_value, classes, short_conv;
    int32_t n_layers, n_heads, d_model, d_ff, head_outputs, step_draws;
    int32_t max_slots, precision, threads, team, speculate;  // precision: see Format
};

// A layer's parameters with PyTorch's shapes, float32 and contiguous. A pointer is null if the network
// lacks that parameter.
struct LayerWeights {
    const float *query_weight, *query_bias, *key_weight, *key_bias, *value_weight, *value_bias;
    const float *out_weight, *out_bias, *linear1_weight, *linear1_bias;
    const float *linear2_weight, *linear2_bias;
    const float *norm1_weight, *norm1_bias, *norm2_weight, *norm2_bias;
    const float *conv1_weight, *conv2_weight;
};
// Parameters outside the layers, and the layers.
struct Weights {
    const float *value_embedding, *start, *tables, *linear_weight, *linear_bias, *code;
    const float *row, *column, *label;
    const float *norm_weight, *norm_bias, *head_weight, *head_bias;
    const LayerWeights* layers;
};

// The decoder's arrays, one row per slot. For shapes see model/decoders/base.py.
struct Arrays {
    uint8_t* canvas;
    float* bits;
    int32_t* positions;
    const uint8_t* known;
    const uint64_t *seed, *particle;
    const float* temperature;
    const int32_t* label;
    const float *top_p, *guidance;
    const int32_t* twin;
};
}
