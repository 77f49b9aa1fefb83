// A pass: the rows that the network computes together.
#pragma once

#include "distribution.h"
#include "matrix.h"

namespace scanline {

// Maximum rows of a pass: whole blocks of the widest kernel. More rows would read the weights less
// often, but from 12 rows on the arithmetic takes longer than the reading (except with AMX), and more
// states would not fit in the L3 cache.
constexpr int MAX_ROWS = TILES ? 2 * TILE_ROWS : BLOCK < 12 ? 3 * BLOCK : BLOCK;
constexpr int INPUT_ROWS = MAX_ROWS + 1;  // a product may read one row past the last

// One step of one slot.
struct Row {
    int slot, step;
};

// Consecutive steps of one slot: `count` rows of the pass from `first` on. The inputs of the first
// `confirmed` rows are known, so their keys and values are added to the state at once. The inputs of
// the other rows are predicted. `pending` is the number of the previous pass's rows whose predictions
// were right and whose keys and values are still to be added; they are stored from row `pending_row` on
// of a buffer that belongs to the slot until then.
struct Run {
    int slot, first, count, confirmed, pending, pending_row;
};

// The values decided by a row. `parameters` is its index, `unconditional` that of its twin's row or -1.
struct Decision {
    Row row;
    int parameters, unconditional;
    uint8_t values[MAX_CHANNELS];
    float bits;
};

struct Pass {
    Row rows[MAX_ROWS];
    Run runs[MAX_ROWS];
    Decision decisions[MAX_ROWS];
    int row_count = 0, run_count = 0, decision_count = 0;
};

}  // namespace scanline
