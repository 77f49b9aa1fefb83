// All steps of so many pixels as one kernel: from the values drawn so far through all layers to the
// next ones, pixel after pixel.
//
// A cluster of CLUSTER blocks has so many rows of the batch, ROWS at most, and goes through all
// layers with them, so blocks of other rows are never waited for. Of each product a block computes
// its share of the outputs, from weights that come to registers in the order in which tensor cores
// want them, and gives them to every block of the cluster. Few rows are spread over many blocks for
// speed, many rows over one block each, so that weights are read seldom.
//
// Every output is the same sum whatever CLUSTER, ROWS and WARPS are: what it starts from, then the
// sums over 128 inputs each, in order. So an image's bytes do not depend on who is drawn beside it.
//
// The sizes of sizes.py are given to the compiler, and how rows are shared out (`Way`, layers.py):
// GROUPS and SLICES are in how many parts a block takes its heads and its hidden features, TOGETHER
// the states of a warp at a time; STAGED has the next layer's weights come to shared memory.

struct Layers : Attention {
    using Attention::Attention;

    // Where weights of the products are, of this block's tiles of outputs.
    static constexpr int TILES_QKV = MINE * HEAD_TILES, TILES_D = D / 16 / CLUSTER;
    static constexpr int TILES_HIDDEN = SLICE / 16 / CLUSTER;
    static constexpr int TILES_HEAD = (OF_HEAD_TILES + CLUSTER - 1) / CLUSTER;

    // Where those of each product wait in shared memory: a chunk of a tile for each warp.
    static constexpr int SLOT = 8 * FRAGMENT, SLOT_OUT = TILES_QKV * (D / CHUNK) * SLOT;
    static constexpr int SLOT_LINEAR1 = SLOT_OUT + TILES_D * (D / CHUNK) * SLOT;
    static constexpr int SLOT_LINEAR2 = SLOT_LINEAR1 + TILES_HIDDEN * (EXACT_IN / CHUNK) * SLOT;
    static_assert(!STAGED || (SPREAD<TILES_QKV, D> && SPREAD<TILES_D, FF>), "");
    static_assert(!STAGED || SPREAD<TILES_HIDDEN, EXACT_IN>, "");

    DEVICE const uint4* layer_weights(int layer) const {
        return a.weights + (long long)layer * OF_LAYER;
    }

    DEVICE int qkv_tile(int group, int tile) const {
        const int half = tile == 4 && SHARERS > 1 ? rank % SHARERS : 0;
        return head_of(group) * 6 + tile + half;
    }

    DEVICE const uint4* qkv_at(int layer, int group, int tile, int chunk) const {
        return layer_weights(layer) + OF_QKV + qkv_tile(group, tile) * TILE_D
            + chunk * 8 * FRAGMENT;
    }

    DEVICE const uint4* qkv_begins(int layer, int group, int t = 0) const {
        return beginning<TILES_QKV, D>(
            [&](int tile, int chunk) { return qkv_at(layer, group, tile, chunk); }, t
        );
    }

    DEVICE const uint4* out_at(int layer, int tile, int chunk) const {
        return layer_weights(layer) + OF_OUT + (rank * TILES_D + tile) * TILE_D
            + chunk * 8 * FRAGMENT;
    }

    DEVICE const uint4* out_begins(int layer, int t = 0) const {
        return beginning<TILES_D, D>(
            [&](int tile, int chunk) { return out_at(layer, tile, chunk); }, t
        );
    }

    // Of products over EXACT_IN inputs: which part of them a chunk is of, and where in it.
    static constexpr int CHUNKS_D = D / CHUNK;

    DEVICE const u16* exact_input(int chunk) const {
        if (!EXACT) return u + chunk * CHUNK;
        return (chunk < 2 * CHUNKS_D ? u : rest) + chunk % CHUNKS_D * CHUNK;
    }

    DEVICE static const uint4* exact_at(const uint4* all, const uint4* left, int chunk) {
        if (!EXACT) return all + chunk * 8 * FRAGMENT;
        return (chunk / CHUNKS_D == 1 ? left : all) + chunk % CHUNKS_D * 8 * FRAGMENT;
    }

    DEVICE const uint4* linear1_at(int layer, int slice, int tile, int chunk) const {
        const int at = (slice * (SLICE / 16) + rank * TILES_HIDDEN + tile) * TILE_D;
        return exact_at(
            layer_weights(layer) + OF_LINEAR1 + at, layer_weights(LAYERS) + 2 * OF_HEAD + at, chunk
        );
    }

    DEVICE const uint4* linear1_begins(int layer, int slice, int t = 0) const {
        const auto at = [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); };
        return EXACT && layer == 0 ? beginning<TILES_HIDDEN, EXACT_IN>(at, t)
            : beginning<TILES_HIDDEN, D>(at, t);
    }

    DEVICE const uint4* linear2_at(int layer, int slice, int tile, int chunk) const {
        return layer_weights(layer) + OF_LINEAR2 + (rank * TILES_D + tile) * TILE_FF
            + (slice * (SLICE / CHUNK) + chunk) * 8 * FRAGMENT;
    }

    DEVICE const uint4* linear2_begins(int layer, int slice, int t = 0) const {
        return beginning<TILES_D, SLICE>(
            [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); }, t
        );
    }

    DEVICE int head_tile(int tile) const {  // of the head's tiles a block has every CLUSTER-th
        return tile * CLUSTER + rank < OF_HEAD_TILES ? tile * CLUSTER + rank : OF_HEAD_TILES - 1;
    }

    DEVICE const uint4* head_at(int tile, int chunk) const {
        const uint4* all = layer_weights(LAYERS) + head_tile(tile) * TILE_D;
        return exact_at(all, all + OF_HEAD, chunk);
    }

    DEVICE const uint4* head_begins(int t = 0) const {
        return beginning<TILES_HEAD, EXACT_IN>(
            [&](int tile, int chunk) { return head_at(tile, chunk); }, t
        );
    }

    DEVICE static int behind(int layer) { return layer == LAYERS - 1 ? 0 : layer + 1; }

    // q, k and v, and what attention makes of them: o, of every block.
    DEVICE void attend(int layer, const float* biases) {
#pragma unroll 1
        for (int group = 0; group < GROUPS; group++) {
            const int head = head_of(group);
            const int n0 = own_pair() / MINE, mine0 = own_pair() % MINE;
            if (group > 0) expect_first(layer, head);
            product<TILES_QKV, D, 1, 2>(
                [&](int chunk) { return u + chunk * CHUNK; }, U,
                [&](int tile, int chunk) { return qkv_at(layer, group, tile, chunk); },
                [&](int m, int) { return biases[AT_QKV + qkv_tile(group, m / 16) * 16 + m % 16]; },
                [&](int m, int n, const float (&x)[2], int) {
                    const u32 features = packed(feature(x[0]), feature(x[1])), v = packed(x[0], x[1]);
                    const int half = m >= 64 && SHARERS > 1 ? rank % SHARERS * 16 : 0;
                    *(u32*)(middle + n * HEADS_ROW + m + half) = m % 96 < 64 ? features : v;
                },
                [&](int t) {
                    return STAGED ? qkv_begins(behind(layer), 0, t)
                        : group + 1 < GROUPS ? qkv_begins(layer, group + 1, t) : out_begins(layer, t);
                },
                0
            );
            take_staged<TILES_D, D>(SLOT_OUT);
            if (AHEAD) {
                if (n0 < live) attend_to(ahead, n0, head + mine0, mine0);
                if (has_own()) keep(ahead, layer, n0, head + mine0, mine0);
            } else {
                attend_all(layer, head);
            }
            if (CLUSTER == 1) sync_block();
            await(OF_O);
            if (SHARERS > 1 && has_own()) keep_sum(layer, n0, head + mine0);
        }
    }

    // The first of the two feed-forward products, of a part of the hidden features.
    template <int IN>
    DEVICE void widen(int layer, int slice, const float* biases) {
                    product<TILES_HIDDEN, IN, CLUSTER, 8>(
                        [&](int chunk) { return exact_input(chunk); }, U,
                        [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); },
                        [&](int m, int) {
                            return biases[AT_LINEAR1 + slice * SLICE + rank * TILES_HIDDEN * 16 + m];
                        },
                        [&](int m, int n, const auto& x, int to) {
                            constexpr int COUNT = sizeof x / sizeof(float);
                            float hidden[COUNT];
        #pragma unroll
                            for (int i = 0; i < COUNT; i++) hidden[i] = activate(x[i]);
                            push_rounded(
                                middle + n * HIDDEN_ROW + rank * TILES_HIDDEN * 16 + m, to, hidden, OF_HIDDEN
                            );
                        },
                        [&](int t) {
                            return STAGED ? linear1_begins(behind(layer), 0, t) : linear2_begins(layer, slice, t);
                        },
                        SLOT_LINEAR1
                    );
    }

    DEVICE void go_through(int layer) {
        const bool last = layer == LAYERS - 1;
        const auto to_stream = [&](int m, int n, const auto& x, int to) {
            push_floats(y + n * X + rank * (D / CLUSTER) + m, to, x, OF_Y);
        };
        const float* v = CLUSTER > 1 ? half_of_vectors(parity) : a.vectors + layer * AT_LAYER;
        const float* next = last ? last_vectors()
            : CLUSTER > 1 ? half_of_vectors(1 - parity) : v + AT_LAYER;
        const float* biases = CLUSTER > 1 ? v : vectors;
        const float* of_next = a.vectors + behind(layer) * AT_LAYER;
        if (CLUSTER > 1) bring_vectors(of_next, half_of_vectors(1 - parity), AT_LAYER);
        parity = 1 - parity;
        attend(layer, biases);
        product<TILES_D, D, CLUSTER, 4>(
            [&](int chunk) { return o + chunk * CHUNK; }, U,
            [&](int tile, int chunk) { return out_at(layer, tile, chunk); },
            [&](int m, int n) {
                const int d = rank * (D / CLUSTER) + m;
                return x[n * X + d] + biases[AT_OUT + d];
            },
            to_stream,
            [&](int t) { return STAGED ? out_begins(behind(layer), t) : linear1_begins(layer, 0, t); },
            SLOT_OUT
        );
        if (EXACT && layer == 0) take_staged<TILES_HIDDEN, EXACT_IN>(SLOT_LINEAR1);
        else take_staged<TILES_HIDDEN, D>(SLOT_LINEAR1);
        await(OF_Y);
        float* ring = RING > 0 ? a.ring + 2ll * layer * a.size * (RING * D) : nullptr;
        const long long rings = (long long)a.size * (RING * D);
        if (!last) expect_first(layer + 1, head_of(0));
        settle(
            y, v + (PRE ? AT_NORM2 : AT_NORM1), nullptr, RING > 0 ? v + AT_CONV2 : nullptr,
            ring + rings
        );
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) {
            if (EXACT && layer == 0) widen<EXACT_IN>(layer, slice, biases);
            else widen<D>(layer, slice, biases);
            take_staged<TILES_D, SLICE>(SLOT_LINEAR2);
            await(OF_HIDDEN);
            if (!last) read_own(layer + 1);
            product<TILES_D, SLICE, CLUSTER, 4>(
                [&](int chunk) { return middle + chunk * CHUNK; }, HIDDEN_ROW,
                [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); },
                [&](int m, int n) {
                    const int d = rank * (D / CLUSTER) + m;
                    return slice ? y[n * X + d] : x[n * X + d] + biases[AT_LINEAR2 + d];
                },
                to_stream,
                [&](int t) {
                    return STAGED ? linear2_begins(behind(layer), 0, t)
                        : slice < SLICES - 1 ? linear1_begins(layer, slice + 1, t)
                        : last ? head_begins(t) : qkv_begins(layer + 1, 0, t);
                },
                SLOT_LINEAR2
            );
            if (!last) take_staged<TILES_QKV, D>(0);
            else if (STAGED) load([&](int t) { return head_begins(t); });
            await(OF_Y);
        }
        if (CLUSTER == 1) bring_vectors(of_next, vectors, HELD);
        settle(
            y, !PRE ? v + AT_NORM2 : last ? next : next + AT_NORM1, !PRE && last ? next : nullptr,
            RING > 0 && !last ? next + AT_CONV1 : nullptr, ring + 2 * rings
        );
    }

    // The head's product: the parameters of each row, in every block.
    DEVICE void finish() {
        const float* v = last_vectors() + 2 * D;
        float* parameters = (float*)middle;
        product<TILES_HEAD, EXACT_IN, CLUSTER, 4>(
            [&](int chunk) { return exact_input(chunk); }, U,
            [&](int tile, int chunk) { return head_at(tile, chunk); },
            [&](int m, int) { return v[head_tile(m / 16) * 16 + m % 16]; },
            [&](int m, int n, const auto& x, int to) {
                if (m / 16 * CLUSTER + rank >= OF_HEAD_TILES) return;
                const int output = head_tile(m / 16) * 16 + m % 16;
                push_floats(parameters + n * PARAMETERS_ROW + output, to, x, OF_PARAMETERS);
            },
            [](int) -> const uint4* { return nullptr; }
        );
    }
};

KERNEL(THREADS) layers(const Arguments a) {
    Layers b(a);
    b.thread = thread_in_block(), b.warp = b.thread / 32, b.lane = b.thread % 32;
    b.rank = block() % CLUSTER, b.first = block() / CLUSTER * a.each;
    b.live = a.rows - b.first < a.each ? a.rows - b.first : a.each;
    float* shared = (float*)shared_memory();
    b.x = shared;
    b.y = CLUSTER > 1 ? shared + ROWS * X : shared;
    b.partial = b.y + ROWS * X;
    b.vectors = b.partial + (CLUSTER > 1 ? WARPS * ROWS * PARTIAL : 0);
    b.u = (u16*)(b.vectors + HELD);
    b.o = b.u + ROWS * U;
    b.rest = b.o + ROWS * U;
    b.middle = b.rest + EXACT * ROWS * U;
    b.given = (u64*)(b.middle + ROWS * MIDDLE);
    b.slot = (int*)(b.given + GIVEN);
    b.step = b.slot + ROWS;
    b.image = b.step + ROWS;
    b.spent = (float*)(b.image + ROWS);
    b.staged = (uint4*)(shared_memory() + SHARED_BYTES - STAGED_BYTES);
    b.bring_vectors(a.vectors, b.vectors, CLUSTER > 1 ? AT_LAYER : HELD);
    if (CLUSTER > 1) b.bring_vectors(a.vectors + LAYERS * AT_LAYER, b.half_of_vectors(2), LAST);
    if (STAGED) {
        uint4* own = b.staged + b.warp * b.SLOT + b.lane;
        b.bring(own, b.qkv_begins(0, 0));
        b.bring(own + b.SLOT_OUT, b.out_begins(0));
        b.bring(own + b.SLOT_LINEAR1, b.linear1_begins(0, 0));
        b.bring(own + b.SLOT_LINEAR2, b.linear2_begins(0, 0));
    }
    if (b.thread < b.live) {
        const int slot = a.slots[b.first + b.thread];
        b.slot[b.thread] = slot;
        b.arrive_at(b.thread, slot < 0 ? STEPS : a.positions[slot] * PARTS);
    }
    if (CLUSTER > 1 && b.thread == 0) {
        for (int i = 0; i < GIVEN; i++) begin_counting(b.given + i), b.expect(i);
    }
    copied<0>();
    sync_block();
    arrive();
    wait();  // nobody pushes to a block that has not begun
#pragma unroll 1
    for (int i = 0; i < a.pixels * PARTS; i++) {
        if (STAGED) b.take_staged<Layers::TILES_QKV, D>(0);
        else b.load([&](int t) { return b.qkv_begins(0, 0, t); });
        b.read_own(0);
        b.expect_first(0, b.head_of(0));
        b.embed();
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; layer++) b.go_through(layer);
        b.finish();
        b.sample();
    }
    if (b.rank == 0 && b.thread < b.live && b.slot[b.thread] >= 0) {
        const int position = b.step[b.thread] / PARTS;
        a.positions[b.slot[b.thread]] = position < PIXELS ? position : PIXELS;
    }
    arrive();
    wait();  // nobody ends while what it pushed is on its way
}
