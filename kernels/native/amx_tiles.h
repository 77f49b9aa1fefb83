// Products of whole numbers by AMX, whose tiles multiply up to 16 rows with 16 outputs, 64 inputs of
// each at once.
//
// A tile of weights has a line for every four inputs, where each output has its four side by side: two
// tiles lie in a panel of weights of 8 bits as they are. Numbers of 16 bits are cut in two planes,
// x = 256 · high + low, the high one signed. All sums are modulo 2^32: the bytes of every other kernel.
#pragma once

#include <atomic>

#include "formats.h"

namespace scanline {

constexpr int TILE_ROWS = 16, TILE_OUTPUTS = 16, TILE_PANEL = 2 * TILE_OUTPUTS;
constexpr size_t TILE_BYTES = size_t{TILE_OUTPUTS} * TILE_INPUTS;

// Where a weight's high byte lies in a panel of planes: for each 16 outputs and 64 inputs a tile of high
// bytes, then one of low ones.
constexpr size_t place_in_planes(size_t column, size_t input, size_t inputs) {
    const size_t pair = (column / TILE_OUTPUTS * inputs + input) / TILE_INPUTS;
    const size_t line = input % TILE_INPUTS / 4;
    return 2 * pair * TILE_BYTES + (line * TILE_OUTPUTS + column % TILE_OUTPUTS) * 4 + input % 4;
}

#if defined(__AMX_INT8__)

// The shapes of a thread's eight tiles: 0 to 3 are sums and 4 and 5 inputs, of so many rows; 6 and 7
// weights.
struct alignas(64) TileShapes {
    uint8_t palette = 1, unused[15] = {};
    uint16_t line_bytes[16] = {};
    uint8_t lines[16] = {};

    constexpr TileShapes(int rows) {
        for (int tile = 0; tile < 8; ++tile) {
            line_bytes[tile] = 64;
            lines[tile] = static_cast<uint8_t>(tile < 6 ? rows : TILE_INPUTS / 4);
        }
    }
};

// While it lives, its thread multiplies so many rows: all blocks of them have the same tiles, the
// shorter ones with a row too many.
class Tiles {
public:
    explicit Tiles(int rows) : used_(rows >= LEAST_TILE_ROWS) {
        if (!used_) return;
        const int blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
        _tile_loadconfig(&SHAPES[(rows + blocks - 1) / blocks - 1]);
    }
    ~Tiles() {
        if (used_) _tile_release();
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

private:
    // In memory from the start: gcc does not know how much of it is read.
    static constexpr TileShapes SHAPES[TILE_ROWS] = {1, 2,  3,  4,  5,  6,  7,  8,
                                                     9, 10, 11, 12, 13, 14, 15, 16};
    const bool used_;
};

// gcc does not know either that tiles are read from memory: all that is stored before has to be there.
inline void before_tiles() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Fetch what the next round reads, as fetch_ahead does.
ALWAYS_INLINE inline void fetch_tiles(const std::byte* next) {
    for (size_t i = 0; i < 2 * TILE_BYTES; i += 64) __builtin_prefetch(next + i, 0, 3);
}

// The kernels of matrix.h for a block of rows and one panel. (Tiles are numbered by literals: gcc
// makes their names of them.)
inline void multiply_bytes(const std::byte* input, size_t stride, int, const std::byte* panel,
                           size_t panel_bytes, int inputs, float* tile) {
    constexpr size_t LINE = TILE_PANEL * 4;
    before_tiles();
    _tile_zero(0);
    _tile_zero(1);
    for (int k = 0; k < inputs; k += TILE_INPUTS, panel += 2 * TILE_BYTES) {
        fetch_tiles(panel + panel_bytes);
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
    before_tiles();
    for (int half = 0; half < 2; ++half, tile += TILE_OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (int k = 0; k < 2 * inputs; k += 2 * TILE_INPUTS, panel += 2 * TILE_BYTES) {
            fetch_tiles(panel + panel_bytes / 2);
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

// Products of whole tiles alone, four of them `repeats` times: how fast is AMX?
inline void multiply_tiles(int repeats) {
    const Tiles tiles(TILE_ROWS);
    for (int i = 0; i < repeats; ++i) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 6);
        _tile_dpbusd(2, 4, 6);
        _tile_dpbusd(3, 4, 6);
    }
}

#else

struct Tiles {
    explicit Tiles(int) {}
};

#endif

}  // namespace scanline
