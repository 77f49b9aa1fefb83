// Products of all rows with a block's share of a matrix, on tensor cores.

// Add a tile of outputs over CHUNK inputs, for all rows. `b` is [ROWS, stride]. What the weights
// leave free is filled from `next`, if there is MORE.
template <bool MORE>
DEVICE void multiply(
    float (&p)[COLS][4], uint4 (&a)[8], const u16* b, int stride, const uint4* next, int lane
) {
#pragma unroll
    for (int n = 0; n < COLS; n++) p[n][0] = p[n][1] = p[n][2] = p[n][3] = 0.0f;
    if (COLS == 1) {  // all that it takes first, as nothing else hides how long that takes
        u32 r[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices(r[i], b + lane % 8 * stride + 32 * i + lane / 8 * 8);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            multiply_add(p[0], a[2 * i], r[i][0], r[i][1]);
            multiply_add(p[0], a[2 * i + 1], r[i][2], r[i][3]);
        }
        if (MORE) {
#pragma unroll
            for (int i = 0; i < 8; i++) a[i] = fetch(next + i * FRAGMENT + lane);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
#pragma unroll
        for (int n = 0; n < COLS; n++) {
            u32 r[4];
            load_matrices(r, b + (8 * n + lane % 8) * stride + 16 * i + lane / 8 * 8);
            multiply_add(p[n], a[i], r[0], r[1]);
            multiply_add(p[n], a[i + 1], r[2], r[3]);
        }
        if (MORE) {
            a[i] = fetch(next + i * FRAGMENT + lane);
            a[i + 1] = fetch(next + (i + 1) * FRAGMENT + lane);
        }
    }
}

struct Products : Rows {
    float* partial;  // sums over parts of the inputs, where warps share a tile
    uint4* staged;   // weights that wait for their product
    uint4 w[8];      // weights on their way: those that this warp multiplies with next

    using Rows::Rows;

    // Begin to copy those of the next layer to where they wait for it.
    DEVICE void bring(uint4* own, const uint4* from) {
        if (from) {
#pragma unroll
            for (int i = 0; i < 8; i++) copy(own + i * FRAGMENT, from + i * FRAGMENT + lane);
        }
        begin_copies();
    }

    DEVICE void load(const uint4* from) {
#pragma unroll
        for (int i = 0; i < 8; i++) {  // what was there is of no use any more
            w[i] = from ? fetch(from + i * FRAGMENT + lane) : make_uint4(0, 0, 0, 0);
        }
    }

    // Whether each warp has one chunk of one tile of COUNT tiles of outputs over IN inputs.
    template <int COUNT, int IN>
    static constexpr bool SPREAD = CLUSTER > 1 && COUNT * (IN / CHUNK) <= WARPS;

    // Where the weights are that this warp begins a product with, null where it has none;
    // `at(tile, chunk)` is where those of the product are.
    template <int COUNT, int IN, class At>
    DEVICE const uint4* beginning(At at) const {
        constexpr int CHUNKS = IN / CHUNK;
        if (SPREAD<COUNT, IN>) return warp < COUNT * CHUNKS ? at(warp / CHUNKS, warp % CHUNKS) : nullptr;
        return warp < COUNT ? at(warp, 0) : nullptr;
    }

    // COUNT tiles of outputs over IN inputs; weights of the beginning are on their way. `b` is
    // [ROWS, stride]. `start(m, n)` is what output m of row n starts from, and
    // `done(m, n, one, two, rank)` is told outputs m and m + 1, once for each of TO blocks.
    // `next()` is where the next product begins.
    template <int COUNT, int IN, int TO, class At, class Start, class Done, class Next>
    DEVICE void product(
        const u16* b, int stride, At at, Start start, Done done, Next next, uint4* slot = nullptr
    ) {
        constexpr int CHUNKS = IN / CHUNK;
        float p[COLS][4];
        if constexpr (SPREAD<COUNT, IN>) {
            const bool busy = warp < COUNT * CHUNKS;
            uint4* own = slot + warp * (8 * FRAGMENT) + lane;  // a lane reads what it brought itself
            if (STAGED && slot) {
                copied<3>();
                if (busy) {
#pragma unroll
                    for (int i = 0; i < 8; i++) w[i] = own[i * FRAGMENT];
                }
            }
            if (busy) {
                multiply<false>(p, w, b + warp % CHUNKS * CHUNK, stride, nullptr, lane);
                float* to = partial + warp * ROWS * PARTIAL + lane / 4;
#pragma unroll
                for (int n = 0; n < COLS; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        to[(8 * n + lane % 4 * 2 + i % 2) * PARTIAL + i / 2 * 8] = p[n][i];
                    }
                }
            }
            if (STAGED && slot) {
                bring(own, next());
                copied<3>();
            } else {
                load(next());
            }
            sync_block();
            for (int i = thread; i < COUNT * 8 * TO * live; i += THREADS) {
                const int m = i % (COUNT * 8) * 2, n = i / (COUNT * 8 * TO);
                const float* from = partial + m / 16 * CHUNKS * ROWS * PARTIAL + n * PARTIAL + m % 16;
                float one = start(m, n), two = start(m + 1, n);
#pragma unroll
                for (int j = 0; j < CHUNKS; j++) {
                    const float2 more = *(const float2*)(from + j * ROWS * PARTIAL);
                    one += more.x;
                    two += more.y;
                }
                done(m, n, one, two, i / (COUNT * 8) % TO);
            }
        } else {
            if (warp >= COUNT) load(next());
#pragma unroll 1
            for (int tile = warp; tile < COUNT; tile += WARPS) {
                const int m = 16 * tile + lane / 4, n0 = lane % 4 * 2;
                float sum[COLS][4];
#pragma unroll
                for (int n = 0; n < COLS; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[n][i] = start(m + i / 2 * 8, 8 * n + n0 + i % 2);
                }
#pragma unroll 1
                for (int j = 0; j < CHUNKS; j++) {
                    const uint4* more = j + 1 < CHUNKS ? at(tile, j + 1)
                        : tile + WARPS < COUNT ? at(tile + WARPS, 0) : next();
                    if (more) multiply<true>(p, w, b + j * CHUNK, stride, more, lane);
                    else multiply<false>(p, w, b + j * CHUNK, stride, nullptr, lane);
#pragma unroll
                    for (int n = 0; n < COLS; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) sum[n][i] += p[n][i];
                    }
                }
                // Lanes 4 apart have neighbouring outputs of two rows each: they swap one.
                const bool odd = lane / 4 % 2;
#pragma unroll
                for (int n = 0; n < COLS; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i += 2) {
                        const float other = exchange(odd ? sum[n][i] : sum[n][i + 1], 4);
                        const float one = odd ? other : sum[n][i], two = odd ? sum[n][i + 1] : other;
                        const int row = 8 * n + n0 + odd;
                        if (row >= live) continue;
                        for (int to = 0; to < TO; to++) done(m - odd + i / 2 * 8, row, one, two, to);
                    }
                }
            }
        }
        sync_block();  // nobody reads any more what the next to come may write
    }
};
