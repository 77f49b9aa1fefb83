// Emulation of AMX in plain C++, to test its code on CPUs that lack it (Intel's intrinsics guide,
// LDTILECFG and TDPBUSD).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// The used part of the tile configuration, and a thread's tiles.
struct TileConfiguration {
    uint8_t palette, unused[15];
    uint16_t line_bytes[16];
    uint8_t lines[16];
};
inline thread_local TileConfiguration configured;
inline thread_local uint8_t tile_lines[8][16][64];

inline void load_configuration(const void* place) {
    std::memcpy(&configured, place, sizeof configured);
    std::memset(tile_lines, 0, sizeof tile_lines);
}
inline void release_tiles() { configured = {}; }
inline void zero_tile(int tile) { std::memset(tile_lines[tile], 0, sizeof tile_lines[tile]); }
inline void load_tile(int tile, const void* place, size_t stride) {
    zero_tile(tile);
    for (size_t i = 0; i < configured.lines[tile]; ++i)
        std::memcpy(tile_lines[tile][i], static_cast<const char*>(place) + i * stride,
                    configured.line_bytes[tile]);
}
inline void store_tile(int tile, void* place, size_t stride) {
    for (size_t i = 0; i < configured.lines[tile]; ++i)
        std::memcpy(static_cast<char*>(place) + i * stride, tile_lines[tile][i],
                    configured.line_bytes[tile]);
}

// Add to `sums` the products of the bytes of `left`, row by row, with those of `right` in groups of
// four, modulo 2^32. Like the CPU, end the process if the shapes do not match.
template <typename Left, typename Right>
inline void add_products(int sums, int left, int right) {
    const int inputs = configured.line_bytes[left] / 4, outputs = configured.line_bytes[right] / 4;
    if (configured.palette != 1 || configured.lines[sums] != configured.lines[left] ||
        configured.lines[right] != inputs || configured.line_bytes[sums] / 4 != outputs)
        __builtin_trap();
    for (int row = 0; row < configured.lines[left]; ++row) {
        uint32_t totals[16];
        Left a[64];
        std::memcpy(totals, tile_lines[sums][row], sizeof totals);
        std::memcpy(a, tile_lines[left][row], sizeof a);
        for (int k = 0; k < inputs; ++k) {
            Right b[64];
            std::memcpy(b, tile_lines[right][k], sizeof b);
            for (int i = 0; i < 4 * outputs; ++i)
                totals[i / 4] += static_cast<uint32_t>(int32_t{a[4 * k + i % 4]} * int32_t{b[i]});
        }
        std::memcpy(tile_lines[sums][row], totals, sizeof totals);
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define __AMX_INT8__ 1
#define _tile_loadconfig load_configuration
#define _tile_release release_tiles
#define _tile_zero zero_tile
#define _tile_loadd load_tile
#define _tile_stored store_tile
#define _tile_dpbssd add_products<int8_t, int8_t>
#define _tile_dpbsud add_products<int8_t, uint8_t>
#define _tile_dpbusd add_products<uint8_t, int8_t>
#define _tile_dpbuud add_products<uint8_t, uint8_t>
