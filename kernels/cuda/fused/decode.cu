// Fused decode kernel: all layers and steps of `pixels` pixels in one launch.
//
// A cluster of CLUSTER blocks processes up to ROWS rows of the batch through all layers, so it never
// waits for blocks of other rows. Each block computes a part of the outputs of a product, from weights
// that are stored in the register layout of the tensor cores, and sends them to all blocks of the
// cluster. Few rows are spread over many blocks, which is faster. Many rows are processed by clusters of
// one block, which read the weights less often.
//
// Every output is the same sequence of sums for all CLUSTER, ROWS and WARPS: the initial value, then the
// sums over 64 inputs each, in order. So an image's bytes do not depend on the rest of the batch.
//
// The macros are the sizes of `DecodeConfig` (decode_config.py) and the options of `LaunchConfig`
// (fused_decode.py).

struct FusedDecode : Weights {
    using Weights::Weights;

    // Compute q, k and v, and attention. The output o is sent to every block.
    DEVICE void attend(int layer, const float* biases) {
#pragma unroll 1
        for (int group = 0; group < HEAD_GROUPS; group++) {
            const int head = first_head(group);
            const int n0 = own_state_index() / GROUP_HEADS, head0 = own_state_index() % GROUP_HEADS;
            if (group > 0) prefetch_states(layer, head);
            matmul<TILES_QKV, D, 1, 2>(
                [&](int chunk) { return input + chunk * CHUNK; }, INPUT_STRIDE,
                [&](int tile, int chunk) { return qkv_at(layer, group, tile, chunk); },
                [&](int tile, int m, int) {
                    return biases[BIAS_QKV + qkv_tile(group, tile) * 16 + m];
                },
                [&](int tile, int m, int n, const float (&x)[2], int) {
                    const u32 features = pack_bf16(feature_map(x[0]), feature_map(x[1]));
                    const u32 v = pack_bf16(x[0], x[1]);
                    const int half = tile == 4 && BLOCKS_PER_HEAD > 1 ? rank % BLOCKS_PER_HEAD * 16 : 0;
                    u32* to = (u32*)(scratch + n * QKV_STRIDE + 16 * tile + m + half);
                    *to = tile % 6 < 4 ? features : v;
                },
                [&](int t) {
                    return group + 1 < HEAD_GROUPS ? first_qkv(layer, group + 1, t) : first_out(layer, t);
                }
            );
            if (PRELOAD_STATE) {
                if (n0 < row_count) attend_head(own, n0, head + head0, head0);
                if (has_own_state()) update_state(own, layer, n0, head + head0, head0);
            } else {
                attend_heads(layer, head);
            }
            if (CLUSTER > 1) copy_vectors(next_layer(layer));
            stage_weights<PRODUCT_QKV>(next_layer(layer));
            load_staged<PRODUCT_OUT>(layer);
            if (CLUSTER == 1) sync_block();
            wait_barrier(BARRIER_O);
            if (BLOCKS_PER_HEAD > 1 && has_own_state()) store_shared_z(layer, n0, head + head0);
        }
    }

    // Compute the first feed-forward product of a slice of the hidden features.
    template <int IN>
    DEVICE void feed_forward_in(int layer, int slice, const float* biases) {
        matmul<TILES_HIDDEN, IN, CLUSTER, GELU ? 4 : 8>(
            [&](int chunk) { return split_input(chunk); }, INPUT_STRIDE,
            [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); },
            [&](int tile, int m, int) {
                return biases[BIAS_LINEAR1 + slice * FF_SLICE + (rank * TILES_HIDDEN + tile) * 16 + m];
            },
            [&](int tile, int m, int n, const auto& x, int to) {
                constexpr int COUNT = sizeof x / sizeof(float);
                float hidden[COUNT];
#pragma unroll
                for (int i = 0; i < COUNT; i++) hidden[i] = activate(x[i]);
                u16* own = scratch + n * HIDDEN_STRIDE + (rank * TILES_HIDDEN + tile) * 16 + m;
                store_remote_bf16(own, to, hidden, BARRIER_HIDDEN);
            },
            [&](int t) { return first_linear2(layer, slice, t); }
        );
    }

    DEVICE void run_layer(int layer) {
        const bool last = layer == LAYERS - 1;
        const auto to_stream = [&](int tile, int m, int n, const auto& x, int to) {
            float* own = y + n * STREAM_STRIDE + rank * (D / CLUSTER) + 16 * tile + m;
            store_remote_floats(own, to, x, BARRIER_Y);
        };
        const float* v = CLUSTER > 1 ? layer_vectors(parity) : a.vectors + layer * LAYER_VECTORS;
        const float* next = last ? final_vectors()
            : CLUSTER > 1 ? layer_vectors(1 - parity) : v + LAYER_VECTORS;
        const float* biases = CLUSTER > 1 ? v : vectors;
        parity = 1 - parity;
        attend(layer, biases);
        matmul<TILES_D, D, CLUSTER, 4>(
            [&](int chunk) { return o + chunk * CHUNK; }, INPUT_STRIDE,
            [&](int tile, int chunk) { return out_at(layer, tile, chunk); },
            [&](int tile, int m, int n) {
                const int d = rank * (D / CLUSTER) + 16 * tile + m;
                return x[n * STREAM_STRIDE + d] + biases[BIAS_OUT + d];
            },
            to_stream,
            [&](int t) { return first_linear1(layer, 0, t); }
        );
        stage_weights<PRODUCT_OUT>(next_layer(layer));
        load_staged<PRODUCT_LINEAR1>(layer);
        wait_barrier(BARRIER_Y);
        float* ring = RING > 0 ? a.ring + 2ll * layer * a.slot_count * (RING * D) : nullptr;
        const long long rings = (long long)a.slot_count * (RING * D);
        if (!last) prefetch_states(layer + 1, first_head(0));
        normalise_rows(
            y, v + (PRE ? VECTOR_NORM2 : VECTOR_NORM1), nullptr,
            RING > 0 ? v + VECTOR_CONV2 : nullptr, ring + rings
        );
#pragma unroll 1
        for (int slice = 0; slice < FF_SLICES; slice++) {
            if (SPLIT_BF16 && layer == 0) feed_forward_in<SPLIT_IN>(layer, slice, biases);
            else feed_forward_in<D>(layer, slice, biases);
            stage_weights<PRODUCT_LINEAR1>(next_layer(layer));
            load_staged<PRODUCT_LINEAR2>(layer);
            wait_barrier(BARRIER_HIDDEN);
            matmul<TILES_D, FF_SLICE, CLUSTER, 4>(
                [&](int chunk) { return scratch + chunk * CHUNK; }, HIDDEN_STRIDE,
                [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); },
                [&](int tile, int m, int n) {
                    const int d = rank * (D / CLUSTER) + 16 * tile + m;
                    return slice ? y[n * STREAM_STRIDE + d]
                        : x[n * STREAM_STRIDE + d] + biases[BIAS_LINEAR2 + d];
                },
                to_stream,
                [&](int t) {
                    return slice < FF_SLICES - 1 ? first_linear1(layer, slice + 1, t)
                        : last ? first_head_weights(t) : first_qkv(layer + 1, 0, t);
                }
            );
            stage_weights<PRODUCT_LINEAR2>(next_layer(layer));
            if (!last) load_staged<PRODUCT_QKV>(layer + 1);
            else if (STAGE_WEIGHTS) load_weights([&](int t) { return first_head_weights(t); });
            if (!last) load_own_state(layer + 1);  // after the weights, so that these are not delayed
            wait_barrier(BARRIER_Y);
        }
        if (CLUSTER == 1) copy_biases(next_layer(layer));
        else wait_barrier_at(BARRIER_VECTORS, BARRIER_VECTORS);
        normalise_rows(
            y, !PRE ? v + VECTOR_NORM2 : last ? next : next + VECTOR_NORM1,
            !PRE && last ? next : nullptr,
            RING > 0 && !last ? next + VECTOR_CONV1 : nullptr, ring + 2 * rings
        );
    }

    // Start the copies for the first layer, and wait for its vectors and the final ones.
    DEVICE void stage_first_layer() {
        stage_weights<PRODUCT_QKV>(0), stage_weights<PRODUCT_OUT>(0);
        stage_weights<PRODUCT_LINEAR1>(0), stage_weights<PRODUCT_LINEAR2>(0);
        copy_vectors(0, 4 * FINAL_VECTORS);
        if (thread == 0) {
            const float* from = a.vectors + LAYERS * LAYER_VECTORS;
            copy_bulk(layer_vectors(2), from, 4 * FINAL_VECTORS, mbarriers + BARRIER_VECTORS);
        }
        wait_barrier_at(BARRIER_VECTORS, BARRIER_VECTORS);
    }

    // Compute the head's product: the parameters of each row, in every block.
    DEVICE void run_head() {
        const float* v = final_vectors() + 2 * D;
        float* parameters = (float*)scratch;
        matmul<TILES_HEAD, HEAD_IN, CLUSTER, 4>(
            [&](int chunk) { return split_input(chunk); }, INPUT_STRIDE,
            [&](int tile, int chunk) { return head_at(tile, chunk); },
            [&](int tile, int m, int) { return v[head_tile(tile) * 16 + m]; },
            [&](int tile, int m, int n, const auto& x, int to) {
                if (tile * CLUSTER + rank >= OUTPUT_TILES) return;
                float* own = parameters + n * PARAMETER_STRIDE + head_tile(tile) * 16 + m;
                store_remote_floats(own, to, x, BARRIER_PARAMETERS);
            },
            [](int) -> const uint4* { return nullptr; }
        );
    }
};

KERNEL(THREADS) fused_decode(const Arguments a) {
    FusedDecode b(a);
    b.thread = thread_in_block(), b.warp = b.thread / 32, b.lane = b.thread % 32;
    b.rank = block() % CLUSTER, b.first_row = block() / CLUSTER * a.rows_per_cluster;
    b.row_count = a.rows - b.first_row < a.rows_per_cluster ? a.rows - b.first_row : a.rows_per_cluster;
    float* shared = (float*)shared_memory();
    b.x = shared;
    b.y = CLUSTER > 1 ? shared + ROWS * STREAM_STRIDE : shared;
    b.partial = b.y + ROWS * STREAM_STRIDE;
    b.vectors = b.partial + (CLUSTER > 1 ? 2 * WARPS * ROWS * PARTIAL_STRIDE : 0);
    b.input = (u16*)(b.vectors + VECTOR_FLOATS);
    b.o = b.input + ROWS * INPUT_STRIDE;
    b.input_low = b.o + ROWS * INPUT_STRIDE;
    b.scratch = b.input_low + SPLIT_BF16 * ROWS * INPUT_STRIDE;
    b.mbarriers = (u64*)(b.scratch + ROWS * SCRATCH_STRIDE);
    b.slot = (int*)(b.mbarriers + MBARRIERS);
    b.step = b.slot + ROWS;
    b.active_slot = b.step + ROWS;
    b.pixel_bits = (float*)(b.active_slot + ROWS);
    b.samples = (RowSample*)(b.pixel_bits + ROWS);
    b.staged = (uint4*)(shared_memory() + SHARED_BYTES - STAGE_BYTES);
    if (b.thread < b.row_count) {
        const int slot = a.slots[b.first_row + b.thread];
        b.slot[b.thread] = slot;
        b.set_step(b.thread, slot < 0 ? STEPS : a.positions[slot] * STEPS_PER_PIXEL);
        if (CLUSTER > 1) b.samples[b.thread].step = -1;
    }
    if (CLUSTER == 1) {
        b.copy_biases(0);
        wait_copies();
    } else {
        if (b.thread < MBARRIERS) mbarrier_init(b.mbarriers + b.thread);
        if (b.thread < BARRIER_VECTORS) b.expect_arrivals(b.thread);
    }
    sync_block();
    if (CLUSTER > 1) {
        b.stage_first_layer();
        cluster_arrive();
        cluster_wait();  // no block may receive data before it has started
    }
#pragma unroll 1
    for (int i = 0; i < a.pixels * STEPS_PER_PIXEL; i++) {
        if (STAGE_WEIGHTS) b.load_staged<PRODUCT_QKV>(0);
        else b.load_weights([&](int t) { return b.first_qkv(0, 0, t); });
        b.load_own_state(0);
        b.prefetch_states(0, b.first_head(0));
        b.embed();
        if (CLUSTER > 1) b.score_and_prepare();
        sync_block();
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; layer++) b.run_layer(layer);
        b.run_head();
        b.sample();
    }
    if (CLUSTER > 1) b.score_and_prepare();  // scores the last step
    b.wait_first_layer();  // no block may exit during its copies
    if (b.rank == 0 && b.thread < b.row_count && b.slot[b.thread] >= 0) {
        const int position = b.step[b.thread] / STEPS_PER_PIXEL;
        a.positions[b.slot[b.thread]] = position < PIXELS ? position : PIXELS;
    }
    cluster_arrive();
    cluster_wait();  // no block may exit before its stores to other blocks are complete
}
