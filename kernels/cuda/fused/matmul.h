// Products of all rows with a block's share of a matrix, on tensor cores.

// Give TILES tiles of outputs over HALVES halves of CHUNK inputs, each half's sum apart, for COUNT
// tiles of rows. `b` is [rows, stride], from the first of these inputs on; `half` is the first half.
// What the weights leave free is filled from `next`, if there is MORE.
template <bool MORE, int HALVES, int TILES, int COUNT>
DEVICE void multiply(
    float (&p)[HALVES][TILES][COUNT][4], uint4 (&a)[TILES][8], const u16* b, int stride, int half,
    const uint4* (&next)[TILES], int lane
) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < TILES * COUNT * 4; i++) p[h][i / 4 / COUNT][i / 4 % COUNT][i % 4] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            u32 r[HALVES][4];
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                load_matrices(r[h], b + (8 * n + lane % 8) * stride + 64 * h + 16 * i + lane / 8 * 8);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        const uint4 weights = a[t][4 * (half + h) + i + k];
                        multiply_add(p[h][t][n], weights, r[h][2 * k], r[h][2 * k + 1]);
                    }
                }
            }
        }
        if (MORE) {
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const int first = 4 * (half + h) + i;
                    a[t][first] = load_readonly(next[t] + first * FRAGMENT + lane);
                    a[t][first + 1] = load_readonly(next[t] + (first + 1) * FRAGMENT + lane);
                }
            }
        }
    }
}

struct Products : Sampling {
    // Of many rows a warp has two tiles of outputs at a time, which read the rows once, and so many
    // tiles of rows, as it has no more registers.
    static constexpr int TILES = CLUSTER == 1 && WARPS <= 8 ? 2 : 1;
    static constexpr int PART = CLUSTER == 1 && COLS > 5 && COLS % 2 == 0 ? COLS / 2 : COLS;

    float* partial;     // sums over parts of the inputs, where warps share a tile
    uint4 w[TILES][8];  // weights on their way: those that this warp multiplies with next

    using Sampling::Sampling;

    // Load what a product begins with: `begin(t)`, of the warp's t-th tile at a time.
    template <class Begin>
    DEVICE void load(Begin begin) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint4* from = begin(t);
#pragma unroll
            for (int i = 0; i < 8; i++) {  // what was there is of no use any more
                w[t][i] = from ? load_readonly(from + i * FRAGMENT + lane) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    // Whether each warp has one chunk of one tile of COUNT tiles of outputs over IN inputs.
    template <int COUNT, int IN>
    static constexpr bool SPREAD = CLUSTER > 1 && COUNT * (IN / CHUNK) <= WARPS;

    // Where the weights are that this warp begins a product with, of its t-th tile, null where it has
    // none; `at(tile, chunk)` is where those of the product are.
    template <int COUNT, int IN, class At>
    DEVICE const uint4* beginning(At at, int t) const {
        constexpr int CHUNKS = IN / CHUNK;
        if (SPREAD<COUNT, IN>) return warp < COUNT * CHUNKS ? at(warp / CHUNKS, warp % CHUNKS) : nullptr;
        return warp * TILES < COUNT ? at(tile_of<COUNT>(warp * TILES, t), 0) : nullptr;
    }

    // The last one again where COUNT is odd.
    template <int COUNT>
    DEVICE static int tile_of(int first, int t) {
        return TILES == 1 || first + t < COUNT ? first + t : COUNT - 1;
    }

    // COUNT tiles of outputs over IN inputs; weights of the beginning are on their way. `input(chunk)`
    // is [ROWS, stride]. `start(tile, m, n)` is what output m of a tile starts from in row n, and
    // `done(tile, m, n, x, rank)` is told outputs m, m + 1, ... once for each of TO blocks: two of them,
    // or WIDTH where warps share tiles. `next(t)` is where the next product begins.
    template <
        int COUNT, int IN, int TO, int WIDTH, class In, class At, class Start, class Done, class Next>
    DEVICE void product(In input, int stride, At at, Start start, Done done, Next next) {
        constexpr int CHUNKS = IN / CHUNK;
        if (CLUSTER == 1) opaque(lane), opaque(warp);  // of many rows, registers are short
        if constexpr (SPREAD<COUNT, IN>) {
            float p[2][TILES][COLS][4];
            const bool busy = warp < COUNT * CHUNKS;
            if (busy) {
                const uint4* none[TILES] = {};
                multiply<false>(p, w, input(warp % CHUNKS), stride, 0, none, lane);
                float* to = partial + warp * (2 * ROWS * PARTIAL) + lane / 4;
#pragma unroll
                for (int h = 0; h < 2; h++) {
#pragma unroll
                    for (int i = 0; i < 4 * COLS; i++) {
                        const int n = h * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2;
                        to[n * PARTIAL + i % 4 / 2 * 8] = p[h][0][i / 4][i % 4];
                    }
                }
            }
            if (!STAGED) load(next);
            sync_block();
            constexpr u32 A_TILE = 16 / WIDTH;
            for (u32 i = thread; i < COUNT * A_TILE * TO * live; i += THREADS) {
                const u32 tile = i / A_TILE % COUNT, m = i % A_TILE * WIDTH;
                const u32 to = i / (COUNT * A_TILE) % TO, n = i / (COUNT * A_TILE * TO);
                const float* from = partial + (tile * (2 * CHUNKS) * ROWS + n) * PARTIAL + m;
                float sum[WIDTH];
#pragma unroll
                for (int k = 0; k < WIDTH; k++) sum[k] = start(tile, m + k, n);
#pragma unroll
                for (int j = 0; j < 2 * CHUNKS; j++) {
#pragma unroll
                    for (int k = 0; k < WIDTH; k += 2) {
                        const float2 more = *(const float2*)(from + j * ROWS * PARTIAL + k);
                        sum[k] += more.x;
                        sum[k + 1] += more.y;
                    }
                }
                done(tile, m, n, sum, to);
            }
        } else {
            if (warp * TILES >= COUNT) load(next);
#pragma unroll 1
            for (int tile = warp * TILES; tile < COUNT; tile += WARPS * TILES) {
                const int n0 = lane % 4 * 2;
                float sum[TILES][COLS][4];
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const int mine = tile_of<COUNT>(tile, t);
#pragma unroll
                    for (int n = 0; n < COLS; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            sum[t][n][i] = start(mine, lane / 4 + i / 2 * 8, 8 * n + n0 + i % 2);
                        }
                    }
                }
#pragma unroll 1
                for (int j = 0; j < CHUNKS; j++) {
                    const uint4* more[TILES];
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        more[t] = j + 1 < CHUNKS ? at(tile_of<COUNT>(tile, t), j + 1)
                            : tile + WARPS * TILES < COUNT ? at(tile_of<COUNT>(tile + WARPS * TILES, t), 0)
                            : next(t);
                    }
#pragma unroll
                    for (int part = 0; part < 2 * COLS; part += PART) {
                        float p[1][TILES][PART][4];
                        const int first = part % COLS, half = part / COLS;
                        const u16* from = input(j) + 8 * first * stride + half * (CHUNK / 2);
                        if (first + PART == COLS && more[0]) {
                            multiply<true>(p, w, from, stride, half, more, lane);
                        } else {
                            multiply<false>(p, w, from, stride, half, more, lane);
                        }
#pragma unroll
                        for (int i = 0; i < TILES * PART * 4; i++) {
                            const int t = i / 4 / PART, n = i / 4 % PART;
                            sum[t][first + n][i % 4] += p[0][t][n][i % 4];
                        }
                    }
                }
                // Lanes 4 apart have neighbouring outputs of two rows each: they swap one.
                const bool odd = lane / 4 % 2;
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    if (t && tile + t >= COUNT) break;
#pragma unroll
                    for (int n = 0; n < COLS; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i += 2) {
                            const float* two_rows = sum[t][n] + i;
                            const float other = shuffle_xor(odd ? two_rows[0] : two_rows[1], 4);
                            const float two[2] = {odd ? other : two_rows[0], odd ? two_rows[1] : other};
                            const int row = 8 * n + n0 + odd;
                            if (TO > 1 && row >= live) continue;  // in this block there is room for it
                            const int m = lane / 4 - odd + i / 2 * 8;
                            for (int to = 0; to < TO; to++) done(tile + t, m, row, two, to);
                        }
                    }
                }
            }
        }
        sync_block();  // nobody reads any more what the next to come may write
    }
};
