// Addresses of the weights of each product, and their staging in shared memory.

struct Weights : Attention {
    using Attention::Attention;

    // Tiles of outputs per block.
    static constexpr int TILES_QKV = GROUP_HEADS * TILES_PER_HEAD, TILES_D = D / 16 / CLUSTER;
    static constexpr int TILES_HIDDEN = FF_SLICE / 16 / CLUSTER;
    static constexpr int TILES_HEAD = (OUTPUT_TILES + CLUSTER - 1) / CLUSTER;

    // With STAGE_WEIGHTS, each warp stages one chunk of a tile of every product in shared memory.
    static constexpr int SLOT = 8 * FRAGMENT, STAGE_OUT = TILES_QKV * (D / CHUNK);
    static constexpr int STAGE_LINEAR1 = STAGE_OUT + TILES_D * (D / CHUNK);
    static constexpr int STAGE_LINEAR2 = STAGE_LINEAR1 + TILES_HIDDEN * (SPLIT_IN / CHUNK);
    uint4* staged;
    static_assert(!STAGE_WEIGHTS || ONE_CHUNK_PER_WARP<TILES_QKV, D>, "");
    static_assert(!STAGE_WEIGHTS || ONE_CHUNK_PER_WARP<TILES_D, FF>, "");
    static_assert(!STAGE_WEIGHTS || ONE_CHUNK_PER_WARP<TILES_HIDDEN, SPLIT_IN>, "");
    // Other blocks overwrite q, k and v with hidden features. This is safe only if all warps have
    // synchronised within the output product.
    static_assert(CLUSTER == 1 || ONE_CHUNK_PER_WARP<TILES_D, D>, "");

    DEVICE const uint4* layer_weights(int layer) const {
        return a.weights + (long long)layer * LAYER_WEIGHTS;
    }

    DEVICE int qkv_tile(int group, int tile) const {
        const int half = tile == 4 && BLOCKS_PER_HEAD > 1 ? rank % BLOCKS_PER_HEAD : 0;
        return first_head(group) * 6 + tile + half;
    }

    DEVICE const uint4* qkv_at(int layer, int group, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_QKV + qkv_tile(group, tile) * TILE_D
            + chunk * 8 * FRAGMENT;
    }

    DEVICE const uint4* first_qkv(int layer, int group, int t = 0) const {
        return first_weights<TILES_QKV, D>(
            [&](int tile, int chunk) { return qkv_at(layer, group, tile, chunk); }, t
        );
    }

    DEVICE const uint4* out_at(int layer, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_OUT + (rank * TILES_D + tile) * TILE_D
            + chunk * 8 * FRAGMENT;
    }

    DEVICE const uint4* first_out(int layer, int t = 0) const {
        return first_weights<TILES_D, D>(
            [&](int tile, int chunk) { return out_at(layer, tile, chunk); }, t
        );
    }

    // Input and weights of a chunk of a product over SPLIT_IN inputs.
    static constexpr int CHUNKS_D = D / CHUNK;

    DEVICE const u16* split_input(int chunk) const {
        if (!SPLIT_BF16) return input + chunk * CHUNK;
        return (chunk < 2 * CHUNKS_D ? input : input_low) + chunk % CHUNKS_D * CHUNK;
    }

    DEVICE static const uint4* split_weights(const uint4* all, const uint4* low, int chunk) {
        if (!SPLIT_BF16) return all + chunk * 8 * FRAGMENT;
        return (chunk / CHUNKS_D == 1 ? low : all) + chunk % CHUNKS_D * 8 * FRAGMENT;
    }

    DEVICE const uint4* linear1_at(int layer, int slice, int tile, int chunk) const {
        const int at = (slice * (FF_SLICE / 16) + rank * TILES_HIDDEN + tile) * TILE_D;
        return split_weights(
            layer_weights(layer) + OFFSET_LINEAR1 + at,
            layer_weights(LAYERS) + 2 * HEAD_WEIGHTS + at, chunk
        );
    }

    DEVICE const uint4* first_linear1(int layer, int slice, int t = 0) const {
        const auto at = [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); };
        return SPLIT_BF16 && layer == 0 ? first_weights<TILES_HIDDEN, SPLIT_IN>(at, t)
            : first_weights<TILES_HIDDEN, D>(at, t);
    }

    DEVICE const uint4* linear2_at(int layer, int slice, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_LINEAR2 + (rank * TILES_D + tile) * TILE_FF
            + (slice * (FF_SLICE / CHUNK) + chunk) * 8 * FRAGMENT;
    }

    DEVICE const uint4* first_linear2(int layer, int slice, int t = 0) const {
        return first_weights<TILES_D, FF_SLICE>(
            [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); }, t
        );
    }

    DEVICE int head_tile(int tile) const {  // a block has every CLUSTER-th tile of the head
        return tile * CLUSTER + rank < OUTPUT_TILES ? tile * CLUSTER + rank : OUTPUT_TILES - 1;
    }

    DEVICE const uint4* head_at(int tile, int chunk) const {
        const uint4* all = layer_weights(LAYERS) + head_tile(tile) * TILE_D;
        return split_weights(all, all + HEAD_WEIGHTS, chunk);
    }

    DEVICE const uint4* first_head_weights(int t = 0) const {
        return first_weights<TILES_HEAD, HEAD_IN>(
            [&](int tile, int chunk) { return head_at(tile, chunk); }, t
        );
    }

    DEVICE static int next_layer(int layer) { return layer == LAYERS - 1 ? 0 : layer + 1; }

    // Number of chunks of a layer's product, one per warp.
    template <int PRODUCT>
    DEVICE static int chunk_count(int layer) {
        return PRODUCT == PRODUCT_QKV ? TILES_QKV * CHUNKS_D
            : PRODUCT == PRODUCT_OUT ? TILES_D * CHUNKS_D
            : PRODUCT == PRODUCT_LINEAR1
            ? TILES_HIDDEN * ((SPLIT_BF16 && layer == 0 ? SPLIT_IN : D) / CHUNK)
            : TILES_D * (FF_SLICE / CHUNK);
    }

    // Address of this warp's staged chunk.
    template <int PRODUCT>
    DEVICE uint4* staging_slot() const {
        constexpr int AT = PRODUCT == PRODUCT_QKV ? 0
            : PRODUCT == PRODUCT_OUT ? STAGE_OUT
            : PRODUCT == PRODUCT_LINEAR1 ? STAGE_LINEAR1 : STAGE_LINEAR2;
        return staged + (AT + warp) * SLOT;
    }

    // Start the copy of a layer's weights of a product to the staging memory. The previous weights there
    // must have been used.
    template <int PRODUCT>
    DEVICE void stage_weights(int layer) {
        if (!STAGE_WEIGHTS || lane > 0 || warp >= chunk_count<PRODUCT>(layer)) return;
        u64* barrier = mbarriers + BARRIERS + warp * PRODUCTS + PRODUCT;
        mbarrier_expect(barrier, SLOT * sizeof(uint4));
        const uint4* from = PRODUCT == PRODUCT_QKV ? first_qkv(layer, 0)
            : PRODUCT == PRODUCT_OUT ? first_out(layer)
            : PRODUCT == PRODUCT_LINEAR1 ? first_linear1(layer, 0) : first_linear2(layer, 0);
        copy_bulk(staging_slot<PRODUCT>(), from, SLOT * sizeof(uint4), barrier);
    }

    // Wait for the staged weights of a product.
    template <int PRODUCT>
    DEVICE void wait_staged(int layer) {
        if (!STAGE_WEIGHTS || warp >= chunk_count<PRODUCT>(layer)) return;
        wait_barrier_at(BARRIERS + warp * PRODUCTS + PRODUCT, BARRIERS + PRODUCT);
    }

    // Wait for all staged weights of the first layer.
    DEVICE void wait_first_layer() {
        wait_staged<PRODUCT_QKV>(0), wait_staged<PRODUCT_OUT>(0);
        wait_staged<PRODUCT_LINEAR1>(0), wait_staged<PRODUCT_LINEAR2>(0);
    }

    // Load the staged weights of a product to registers, before waiting for its inputs.
    template <int PRODUCT>
    DEVICE void load_staged(int layer) {
        if (!STAGE_WEIGHTS || warp >= chunk_count<PRODUCT>(layer)) return;
        wait_staged<PRODUCT>(layer);
        const uint4* own = staging_slot<PRODUCT>() + lane;
#pragma unroll
        for (int i = 0; i < 8; i++) w[0][i] = own[i * FRAGMENT];
    }
};
