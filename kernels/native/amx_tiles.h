// Integer matrix products with AMX, whose instructions multiply up to 16 rows by 16 outputs and 64
// inputs.
//
// A tile of weights has one line per four inputs, with the four weights of each output side by side, so
// a panel of 8-bit weights is two tiles as it is. 16-bit integers are split into two planes, x = 256 ·
// high + low, where the high byte is signed. All sums are modulo 2^32 and equal those of the other
// kernels.
#pragma once

#include <atomic>

#include "formats.h"

namespace scanline {

constexpr int TILE_ROWS = 16, TILE_OUTPUTS = 16, TILE_PANEL = 2 * TILE_OUTPUTS;
constexpr size_t TILE_BYTES = size_t{TILE_OUTPUTS} * TILE_INPUTS;

// Offset of a weight's high byte in a panel of planes. For each 16 outputs and 64 inputs, a tile of
// high bytes is followed by a tile of low bytes.
constexpr size_t plane_offset(size_t column, size_t input, size_t inputs) {
    const size_t pair = (column / TILE_OUTPUTS * inputs + input) / TILE_INPUTS;
    const size_t line = input % TILE_INPUTS / 4;
    return 2 * pair * TILE_BYTES + (line * TILE_OUTPUTS + column % TILE_OUTPUTS) * 4 + input % 4;
}

#if defined(__AMX_INT8__)

// Tile configuration of a thread: tiles 0 to 3 hold sums and 4 and 5 inputs, of `rows` rows each; tiles
// 6 and 7 hold weights.
struct alignas(64) TileShape {
    uint8_t palette = 1, unused[15] = {};
    uint16_t line_bytes[16] = {};
    uint8_t lines[16] = {};

    constexpr TileShape(int rows) {
        for (int tile = 0; tile < 8; ++tile) {
            line_bytes[tile] = 64;
            lines[tile] = static_cast<uint8_t>(tile < 6 ? rows : TILE_INPUTS / 4);
        }
    }
};

// Configures the thread's tiles for products of `rows` rows, and releases them at the end of its scope.
// All blocks of rows use the same tile shape; shorter blocks compute one unused row.
class TileConfig {
public:
    explicit TileConfig(int rows) : used_(rows >= MIN_TILE_ROWS) {
        if (!used_) return;
        const int blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
        _tile_loadconfig(&SHAPES[(rows + blocks - 1) / blocks - 1]);
    }
    ~TileConfig() {
        if (used_) _tile_release();
    }
    TileConfig(const TileConfig&) = delete;
    TileConfig& operator=(const TileConfig&) = delete;

private:
    // constexpr data, because gcc does not know how many bytes `_tile_loadconfig` reads.
    static constexpr TileShape SHAPES[TILE_ROWS] = {1, 2,  3,  4,  5,  6,  7,  8,
                                                     9, 10, 11, 12, 13, 14, 15, 16};
    const bool used_;
};

// gcc does not know that tile loads read memory, so prevent it from moving stores past them.
inline void compiler_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Prefetch what the next iteration reads, like `prefetch_panel`.
ALWAYS_INLINE inline void prefetch_tiles(const std::byte* next) {
    for (size_t i = 0; i < 2 * TILE_BYTES; i += 64) __builtin_prefetch(next + i, 0, 3);
}

// Kernels of matrix.h for one block of rows and one panel. Tile numbers must be literals.
inline void multiply_bytes(const std::byte* input, size_t stride, int, const std::byte* panel,
                           size_t panel_bytes, int inputs, float* tile) {
    constexpr size_t LINE = TILE_PANEL * 4;
    compiler_fence();
    _tile_zero(0);
    _tile_zero(1);
    for (int k = 0; k < inputs; k += TILE_INPUTS, panel += 2 * TILE_BYTES) {
        prefetch_tiles(panel + panel_bytes);
        _tile_loadd(4, input + k, stride);
        _tile_loadd(6, panel, LINE);
        _tile_loadd(7, panel + LINE / 2, LINE);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
    }
    _tile_stored(0, tile, LINE);
    _tile_stored(1, tile + TILE_OUTPUTS, LINE);
}

inline void multiply_planes(const std::byte* input, size_t stride, int rows, const std::byte* panel,
                            size_t panel_bytes, int inputs, float* tile) {
    alignas(64) int32_t high[TILE_ROWS * TILE_OUTPUTS], middle[TILE_ROWS * TILE_OUTPUTS],
        low[TILE_ROWS * TILE_OUTPUTS];
    const auto at = [](const int32_t* sums) { return *reinterpret_cast<const VecUnsigned*>(sums); };
    compiler_fence();
    for (int half = 0; half < 2; ++half, tile += TILE_OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (int k = 0; k < 2 * inputs; k += 2 * TILE_INPUTS, panel += 2 * TILE_BYTES) {
            prefetch_tiles(panel + panel_bytes / 2);
            _tile_loadd(4, input + k, stride);
            _tile_loadd(5, input + k + TILE_INPUTS, stride);
            _tile_loadd(6, panel, 64);
            _tile_loadd(7, panel + TILE_BYTES, 64);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            _tile_dpbusd(1, 5, 6);
            _tile_dpbuud(2, 5, 7);
        }
        _tile_stored(0, high, 64);
        _tile_stored(1, middle, 64);
        _tile_stored(2, low, 64);
        for (int row = 0; row < rows; ++row)
            for (int c = 0; c < TILE_OUTPUTS; c += LANES) {
                const int i = row * TILE_OUTPUTS + c;
                store(tile + row * TILE_PANEL + c,
                      (Vec)((at(high + i) << 16) + (at(middle + i) << 8) + at(low + i)));
            }
    }
}

// Multiply full tiles `4 · repeats` times, to measure the peak rate of AMX.
inline void multiply_tiles(int repeats) {
    const TileConfig tiles(TILE_ROWS);
    for (int i = 0; i < repeats; ++i) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 6);
        _tile_dpbusd(2, 4, 6);
        _tile_dpbusd(3, 4, 6);
    }
}

#else

struct TileConfig {
    explicit TileConfig(int) {}
};

#endif

}  // namespace scanline
