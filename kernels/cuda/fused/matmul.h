// Products of all rows with a block's part of a weight matrix, on tensor cores.

// Multiply TILES tiles of outputs over HALVES halves of CHUNK inputs for COUNT tiles of rows. Each half
// has its own sum in `p`. `b` is [rows, stride], from the first input on; `half` is the index of the
// first half. With MORE, used weights in `a` are replaced by weights from `next`.
template <bool MORE, int HALVES, int TILES, int COUNT>
DEVICE void multiply_tiles(
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

struct Matmul : RowSampler {
    // With many rows, a warp computes two tiles of outputs at a time, to read the rows once for both, and
    // PART tiles of rows at a time, to limit its registers.
    static constexpr int TILES = CLUSTER == 1 && WARPS <= 8 ? 2 : 1;
    static constexpr int PART
        = CLUSTER == 1 && ROW_TILES > 5 && ROW_TILES % 2 == 0 ? ROW_TILES / 2 : ROW_TILES;

    float* partial;     // partial sums over inputs, if warps share a tile
    uint4 w[TILES][8];  // weights that this warp multiplies with next, loaded ahead

    using RowSampler::RowSampler;

    // Load the first weights of a product; `begin(t)` points to those of the warp's t-th tile.
    template <class Begin>
    DEVICE void load_weights(Begin begin) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint4* from = begin(t);
#pragma unroll
            for (int i = 0; i < 8; i++) {  // zeros end the lifetime of the old weights
                w[t][i] = from ? load_readonly(from + i * FRAGMENT + lane) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    // Whether every warp has at most one chunk of a product of COUNT tiles of outputs over IN inputs.
    template <int COUNT, int IN>
    static constexpr bool ONE_CHUNK_PER_WARP = CLUSTER > 1 && COUNT * (IN / CHUNK) <= WARPS;

    // Return the address of this warp's first weights of a product, for its t-th tile, or null for none;
    // `at(tile, chunk)` returns the address of weights of the product.
    template <int COUNT, int IN, class At>
    DEVICE const uint4* first_weights(At at, int t) const {
        constexpr int CHUNKS = IN / CHUNK;
        if (ONE_CHUNK_PER_WARP<COUNT, IN>) {
            return warp < COUNT * CHUNKS ? at(warp / CHUNKS, warp % CHUNKS) : nullptr;
        }
        return warp * TILES < COUNT ? at(clamp_tile<COUNT>(warp * TILES, t), 0) : nullptr;
    }

    // Return the t-th tile from `first` on; the last tile is repeated if COUNT is odd.
    template <int COUNT>
    DEVICE static int clamp_tile(int first, int t) {
        return TILES == 1 || first + t < COUNT ? first + t : COUNT - 1;
    }

    // Compute a product of COUNT tiles of outputs over IN inputs. The first weights are loaded already.
    // `input(chunk)` is [ROWS, stride]. `start(tile, m, n)` is the initial sum of output m of a tile in row
    // n. `store(tile, m, n, x, rank)` receives outputs m, m + 1, ... for each of TO blocks: two outputs, or
    // WIDTH if warps share tiles. `next(t)` is the address of the next product's first weights.
    template <
        int COUNT, int IN, int TO, int WIDTH, class In, class At, class Start, class Store, class Next>
    DEVICE void matmul(In input, int stride, At at, Start start, Store store, Next next) {
        constexpr int CHUNKS = IN / CHUNK;
        if (CLUSTER == 1) opaque(lane), opaque(warp);  // with many rows, registers are scarce
        if constexpr (ONE_CHUNK_PER_WARP<COUNT, IN>) {
            float p[2][TILES][ROW_TILES][4];
            const bool busy = warp < COUNT * CHUNKS;
            if (busy) {
                const uint4* none[TILES] = {};
                multiply_tiles<false>(p, w, input(warp % CHUNKS), stride, 0, none, lane);
                float* to = partial + warp * (2 * ROWS * PARTIAL_STRIDE) + lane / 4;
#pragma unroll
                for (int h = 0; h < 2; h++) {
#pragma unroll
                    for (int i = 0; i < 4 * ROW_TILES; i++) {
                        const int n = h * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2;
                        to[n * PARTIAL_STRIDE + i % 4 / 2 * 8] = p[h][0][i / 4][i % 4];
                    }
                }
            }
            if (!STAGE_WEIGHTS) load_weights(next);
            sync_block();
            constexpr u32 GROUPS_PER_TILE = 16 / WIDTH;
            for (u32 i = thread; i < COUNT * GROUPS_PER_TILE * TO * row_count; i += THREADS) {
                const u32 tile = i / GROUPS_PER_TILE % COUNT, m = i % GROUPS_PER_TILE * WIDTH;
                const u32 to = i / (COUNT * GROUPS_PER_TILE) % TO;
                const u32 n = i / (COUNT * GROUPS_PER_TILE * TO);
                const float* from = partial + (tile * (2 * CHUNKS) * ROWS + n) * PARTIAL_STRIDE + m;
                float sum[WIDTH];
#pragma unroll
                for (int k = 0; k < WIDTH; k++) sum[k] = start(tile, m + k, n);
#pragma unroll
                for (int j = 0; j < 2 * CHUNKS; j++) {
#pragma unroll
                    for (int k = 0; k < WIDTH; k += 2) {
                        const float2 addend = *(const float2*)(from + j * ROWS * PARTIAL_STRIDE + k);
                        sum[k] += addend.x;
                        sum[k + 1] += addend.y;
                    }
                }
                store(tile, m, n, sum, to);
            }
        } else {
            if (warp * TILES >= COUNT) load_weights(next);
#pragma unroll 1
            for (int tile = warp * TILES; tile < COUNT; tile += WARPS * TILES) {
                const int n0 = lane % 4 * 2;
                float sum[TILES][ROW_TILES][4];
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const int own_tile = clamp_tile<COUNT>(tile, t);
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            sum[t][n][i] = start(own_tile, lane / 4 + i / 2 * 8, 8 * n + n0 + i % 2);
                        }
                    }
                }
#pragma unroll 1
                for (int j = 0; j < CHUNKS; j++) {
                    const uint4* following[TILES];
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        following[t] = j + 1 < CHUNKS ? at(clamp_tile<COUNT>(tile, t), j + 1)
                            : tile + WARPS * TILES < COUNT
                            ? at(clamp_tile<COUNT>(tile + WARPS * TILES, t), 0)
                            : next(t);
                    }
#pragma unroll
                    for (int part = 0; part < 2 * ROW_TILES; part += PART) {
                        float p[1][TILES][PART][4];
                        const int first = part % ROW_TILES, half = part / ROW_TILES;
                        const u16* from = input(j) + 8 * first * stride + half * (CHUNK / 2);
                        if (first + PART == ROW_TILES && following[0]) {
                            multiply_tiles<true>(p, w, from, stride, half, following, lane);
                        } else {
                            multiply_tiles<false>(p, w, from, stride, half, following, lane);
                        }
#pragma unroll
                        for (int i = 0; i < TILES * PART * 4; i++) {
                            const int t = i / 4 / PART, n = i / 4 % PART;
                            sum[t][first + n][i % 4] += p[0][t][n][i % 4];
                        }
                    }
                }
                // Lanes 4 apart hold neighbouring outputs of the same two rows. They swap one each, so
                // that each lane has two neighbouring outputs of one row.
                const bool odd = lane / 4 % 2;
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    if (t && tile + t >= COUNT) break;
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i += 2) {
                            const float* two_rows = sum[t][n] + i;
                            const float other = shuffle_xor(odd ? two_rows[0] : two_rows[1], 4);
                            const float two[2] = {odd ? other : two_rows[0], odd ? two_rows[1] : other};
                            const int row = 8 * n + n0 + odd;
                            if (TO > 1 && row >= row_count) continue;  // padding row of a remote block
                            const int m = lane / 4 - odd + i / 2 * 8;
                            for (int to = 0; to < TO; to++) store(tile + t, m, row, two, to);
                        }
                    }
                }
            }
        }
        // All reads are done before the buffers are written again. In a cluster, waiting for the exchange
        // does not replace this, because it counts only the stores that arrive in this block: a thread
        // that stores to other blocks may still read.
        sync_block();
    }
};
