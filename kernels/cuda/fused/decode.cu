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
// sums over 64 inputs each, in order. So an image's bytes do not depend on who is drawn beside it.
//
// The sizes of decode_config.py are given to the compiler, and how rows are shared out (`LaunchConfig`, fused_decode.py):
// GROUPS and SLICES are in how many parts a block takes its heads and its hidden features, TOGETHER
// the states of a warp at a time; STAGED has the next layer's weights come to shared memory.

struct Layers : Weights {
    using Weights::Weights;

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
                [&](int tile, int m, int) {
                    return biases[AT_QKV + qkv_tile(group, tile) * 16 + m];
                },
                [&](int tile, int m, int n, const float (&x)[2], int) {
                    const u32 features = pack_bf16(feature(x[0]), feature(x[1]));
                    const u32 v = pack_bf16(x[0], x[1]);
                    const int half = tile == 4 && SHARERS > 1 ? rank % SHARERS * 16 : 0;
                    u32* to = (u32*)(middle + n * HEADS_ROW + 16 * tile + m + half);
                    *to = tile % 6 < 4 ? features : v;
                },
                [&](int t) {
                    return group + 1 < GROUPS ? qkv_begins(layer, group + 1, t) : out_begins(layer, t);
                }
            );
            if (AHEAD) {
                if (n0 < live) attend_to(ahead, n0, head + mine0, mine0);
                if (has_own()) keep(ahead, layer, n0, head + mine0, mine0);
            } else {
                attend_all(layer, head);
            }
            if (CLUSTER > 1) bring_vectors(behind(layer));
            bring<OF_QKV>(behind(layer));
            take_staged<OF_OUT>(layer);
            if (CLUSTER == 1) sync_block();
            await(BARRIER_O);
            if (SHARERS > 1 && has_own()) keep_sum(layer, n0, head + mine0);
        }
    }

    // The first of the two feed-forward products, of a part of the hidden features.
    template <int IN>
    DEVICE void widen(int layer, int slice, const float* biases) {
        product<TILES_HIDDEN, IN, CLUSTER, GELU ? 4 : 8>(
            [&](int chunk) { return exact_input(chunk); }, U,
            [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); },
            [&](int tile, int m, int) {
                return biases[AT_LINEAR1 + slice * SLICE + (rank * TILES_HIDDEN + tile) * 16 + m];
            },
            [&](int tile, int m, int n, const auto& x, int to) {
                constexpr int COUNT = sizeof x / sizeof(float);
                float hidden[COUNT];
#pragma unroll
                for (int i = 0; i < COUNT; i++) hidden[i] = activate(x[i]);
                u16* own = middle + n * HIDDEN_ROW + (rank * TILES_HIDDEN + tile) * 16 + m;
                push_rounded(own, to, hidden, BARRIER_HIDDEN);
            },
            [&](int t) { return linear2_begins(layer, slice, t); }
        );
    }

    DEVICE void go_through(int layer) {
        const bool last = layer == LAYERS - 1;
        const auto to_stream = [&](int tile, int m, int n, const auto& x, int to) {
            push_floats(y + n * X + rank * (D / CLUSTER) + 16 * tile + m, to, x, BARRIER_Y);
        };
        const float* v = CLUSTER > 1 ? half_of_vectors(parity) : a.vectors + layer * LAYER_VECTORS;
        const float* next = last ? last_vectors()
            : CLUSTER > 1 ? half_of_vectors(1 - parity) : v + LAYER_VECTORS;
        const float* biases = CLUSTER > 1 ? v : vectors;
        parity = 1 - parity;
        attend(layer, biases);
        product<TILES_D, D, CLUSTER, 4>(
            [&](int chunk) { return o + chunk * CHUNK; }, U,
            [&](int tile, int chunk) { return out_at(layer, tile, chunk); },
            [&](int tile, int m, int n) {
                const int d = rank * (D / CLUSTER) + 16 * tile + m;
                return x[n * X + d] + biases[AT_OUT + d];
            },
            to_stream,
            [&](int t) { return linear1_begins(layer, 0, t); }
        );
        bring<OF_OUT>(behind(layer));
        take_staged<OF_LINEAR1>(layer);
        await(BARRIER_Y);
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
            bring<OF_LINEAR1>(behind(layer));
            take_staged<OF_LINEAR2>(layer);
            await(BARRIER_HIDDEN);
            product<TILES_D, SLICE, CLUSTER, 4>(
                [&](int chunk) { return middle + chunk * CHUNK; }, HIDDEN_ROW,
                [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); },
                [&](int tile, int m, int n) {
                    const int d = rank * (D / CLUSTER) + 16 * tile + m;
                    return slice ? y[n * X + d] : x[n * X + d] + biases[AT_LINEAR2 + d];
                },
                to_stream,
                [&](int t) {
                    return slice < SLICES - 1 ? linear1_begins(layer, slice + 1, t)
                        : last ? head_begins(t) : qkv_begins(layer + 1, 0, t);
                }
            );
            bring<OF_LINEAR2>(behind(layer));
            if (!last) take_staged<OF_QKV>(layer + 1);
            else if (STAGED) load([&](int t) { return head_begins(t); });
            if (!last) read_own(layer + 1);  // not before weights, or they were waited for too
            await(BARRIER_Y);
        }
        if (CLUSTER == 1) bring_biases(behind(layer));
        else await_at(BARRIER_VECTORS, BARRIER_VECTORS);
        settle(
            y, !PRE ? v + AT_NORM2 : last ? next : next + AT_NORM1, !PRE && last ? next : nullptr,
            RING > 0 && !last ? next + AT_CONV1 : nullptr, ring + 2 * rings
        );
    }

    // Begin to copy what the first layer wants, and wait for vectors: those behind the last layer stay.
    DEVICE void bring_first() {
        bring<OF_QKV>(0), bring<OF_OUT>(0), bring<OF_LINEAR1>(0), bring<OF_LINEAR2>(0);
        bring_vectors(0, 4 * LAST);
        if (thread == 0) {
            const float* from = a.vectors + LAYERS * LAYER_VECTORS;
            copy_bulk(half_of_vectors(2), from, 4 * LAST, mbarriers + BARRIER_VECTORS);
        }
        await_at(BARRIER_VECTORS, BARRIER_VECTORS);
    }

    // The head's product: the parameters of each row, in every block.
    DEVICE void finish() {
        const float* v = last_vectors() + 2 * D;
        float* parameters = (float*)middle;
        product<TILES_HEAD, HEAD_IN, CLUSTER, 4>(
            [&](int chunk) { return exact_input(chunk); }, U,
            [&](int tile, int chunk) { return head_at(tile, chunk); },
            [&](int tile, int m, int) { return v[head_tile(tile) * 16 + m]; },
            [&](int tile, int m, int n, const auto& x, int to) {
                if (tile * CLUSTER + rank >= OUTPUT_TILES) return;
                float* own = parameters + n * PARAMETERS_ROW + head_tile(tile) * 16 + m;
                push_floats(own, to, x, BARRIER_PARAMETERS);
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
    b.vectors = b.partial + (CLUSTER > 1 ? 2 * WARPS * ROWS * PARTIAL : 0);
    b.u = (u16*)(b.vectors + HELD);
    b.o = b.u + ROWS * U;
    b.rest = b.o + ROWS * U;
    b.middle = b.rest + EXACT * ROWS * U;
    b.mbarriers = (u64*)(b.middle + ROWS * MIDDLE);
    b.slot = (int*)(b.mbarriers + MBARRIERS);
    b.step = b.slot + ROWS;
    b.image = b.step + ROWS;
    b.spent = (float*)(b.image + ROWS);
    b.asked = (Row*)(b.spent + ROWS);
    b.staged = (uint4*)(shared_memory() + SHARED_BYTES - STAGED_BYTES);
    if (b.thread < b.live) {
        const int slot = a.slots[b.first + b.thread];
        b.slot[b.thread] = slot;
        b.arrive_at(b.thread, slot < 0 ? STEPS : a.positions[slot] * PARTS);
        if (CLUSTER > 1) b.asked[b.thread].step = -1;
    }
    if (CLUSTER == 1) {
        b.bring_biases(0);
        wait_copies();
    } else {
        if (b.thread < MBARRIERS) mbarrier_init(b.mbarriers + b.thread);
        if (b.thread < BARRIER_VECTORS) b.expect(b.thread);
    }
    sync_block();
    if (CLUSTER > 1) {
        b.bring_first();
        cluster_arrive();
        cluster_wait();  // nobody pushes to a block that has not begun
    }
#pragma unroll 1
    for (int i = 0; i < a.pixels * PARTS; i++) {
        if (STAGED) b.take_staged<OF_QKV>(0);
        else b.load([&](int t) { return b.qkv_begins(0, 0, t); });
        b.read_own(0);
        b.expect_first(0, b.head_of(0));
        b.embed();
        if (CLUSTER > 1) b.weigh_and_ask();
        sync_block();
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; layer++) b.go_through(layer);
        b.finish();
        b.sample();
    }
    if (CLUSTER > 1) b.weigh_and_ask();  // of the last step
    b.await_first();  // nobody ends while copies are on their way
    if (b.rank == 0 && b.thread < b.live && b.slot[b.thread] >= 0) {
        const int position = b.step[b.thread] / PARTS;
        a.positions[b.slot[b.thread]] = position < PIXELS ? position : PIXELS;
    }
    cluster_arrive();
    cluster_wait();  // nobody ends while what it pushed is on its way
}
