// Where the weights of each product are, and with which of them a warp begins it.

struct Weights : Attention {
    using Attention::Attention;

    // Where weights of the products are, of this block's tiles of outputs.
    static constexpr int TILES_QKV = MINE * HEAD_TILES, TILES_D = D / 16 / CLUSTER;
    static constexpr int TILES_HIDDEN = SLICE / 16 / CLUSTER;
    static constexpr int TILES_HEAD = (OUTPUT_TILES + CLUSTER - 1) / CLUSTER;

    // Where STAGED, weights of each product wait in shared memory: a chunk of a tile for each warp.
    static constexpr int SLOT = 8 * FRAGMENT, AT_OUT_SLOTS = TILES_QKV * (D / CHUNK);
    static constexpr int AT_LINEAR1_SLOTS = AT_OUT_SLOTS + TILES_D * (D / CHUNK);
    static constexpr int AT_LINEAR2_SLOTS = AT_LINEAR1_SLOTS + TILES_HIDDEN * (EXACT_IN / CHUNK);
    uint4* staged;
    static_assert(!STAGED || (SPREAD<TILES_QKV, D> && SPREAD<TILES_D, FF>), "");
    static_assert(!STAGED || SPREAD<TILES_HIDDEN, EXACT_IN>, "");
    // Others give hidden features to where q, k and v were once all warps met in the product before.
    static_assert(CLUSTER == 1 || SPREAD<TILES_D, D>, "");

    DEVICE const uint4* layer_weights(int layer) const {
        return a.weights + (long long)layer * LAYER_WEIGHTS;
    }

    DEVICE int qkv_tile(int group, int tile) const {
        const int half = tile == 4 && SHARERS > 1 ? rank % SHARERS : 0;
        return head_of(group) * 6 + tile + half;
    }

    DEVICE const uint4* qkv_at(int layer, int group, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_QKV + qkv_tile(group, tile) * TILE_D
            + chunk * 8 * FRAGMENT;
    }

    DEVICE const uint4* qkv_begins(int layer, int group, int t = 0) const {
        return beginning<TILES_QKV, D>(
            [&](int tile, int chunk) { return qkv_at(layer, group, tile, chunk); }, t
        );
    }

    DEVICE const uint4* out_at(int layer, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_OUT + (rank * TILES_D + tile) * TILE_D
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
            layer_weights(layer) + OFFSET_LINEAR1 + at, layer_weights(LAYERS) + 2 * HEAD_WEIGHTS + at, chunk
        );
    }

    DEVICE const uint4* linear1_begins(int layer, int slice, int t = 0) const {
        const auto at = [&](int tile, int chunk) { return linear1_at(layer, slice, tile, chunk); };
        return EXACT && layer == 0 ? beginning<TILES_HIDDEN, EXACT_IN>(at, t)
            : beginning<TILES_HIDDEN, D>(at, t);
    }

    DEVICE const uint4* linear2_at(int layer, int slice, int tile, int chunk) const {
        return layer_weights(layer) + OFFSET_LINEAR2 + (rank * TILES_D + tile) * TILE_FF
            + (slice * (SLICE / CHUNK) + chunk) * 8 * FRAGMENT;
    }

    DEVICE const uint4* linear2_begins(int layer, int slice, int t = 0) const {
        return beginning<TILES_D, SLICE>(
            [&](int tile, int chunk) { return linear2_at(layer, slice, tile, chunk); }, t
        );
    }

    DEVICE int head_tile(int tile) const {  // of the head's tiles a block has every CLUSTER-th
        return tile * CLUSTER + rank < OUTPUT_TILES ? tile * CLUSTER + rank : OUTPUT_TILES - 1;
    }

    DEVICE const uint4* head_at(int tile, int chunk) const {
        const uint4* all = layer_weights(LAYERS) + head_tile(tile) * TILE_D;
        return exact_at(all, all + HEAD_WEIGHTS, chunk);
    }

    DEVICE const uint4* head_begins(int t = 0) const {
        return beginning<TILES_HEAD, HEAD_IN>(
            [&](int tile, int chunk) { return head_at(tile, chunk); }, t
        );
    }

    DEVICE static int behind(int layer) { return layer == LAYERS - 1 ? 0 : layer + 1; }

    // How many warps have a part of a layer's product.
    template <int OF>
    DEVICE static int parts(int layer) {
        return OF == OF_QKV ? TILES_QKV * CHUNKS_D
            : OF == OF_OUT ? TILES_D * CHUNKS_D
            : OF == OF_LINEAR1 ? TILES_HIDDEN * ((EXACT && layer == 0 ? EXACT_IN : D) / CHUNK)
            : TILES_D * (SLICE / CHUNK);
    }

    // Where this warp's part waits.
    template <int OF>
    DEVICE uint4* slot_of() const {
        constexpr int AT = OF == OF_QKV ? 0
            : OF == OF_OUT ? AT_OUT_SLOTS
            : OF == OF_LINEAR1 ? AT_LINEAR1_SLOTS : AT_LINEAR2_SLOTS;
        return staged + (AT + warp) * SLOT;
    }

    // Begin to copy a layer's weights of a product to where they wait for it, once those that waited
    // there were multiplied with.
    template <int OF>
    DEVICE void bring(int layer) {
        if (!STAGED || lane > 0 || warp >= parts<OF>(layer)) return;
        u64* counted = mbarriers + BARRIERS + warp * PRODUCTS + OF;
        mbarrier_expect(counted, SLOT * sizeof(uint4));
        const uint4* from = OF == OF_QKV ? qkv_begins(layer, 0)
            : OF == OF_OUT ? out_begins(layer)
            : OF == OF_LINEAR1 ? linear1_begins(layer, 0) : linear2_begins(layer, 0);
        copy_bulk(slot_of<OF>(), from, SLOT * sizeof(uint4), counted);
    }

    // Wait for a product's weights.
    template <int OF>
    DEVICE void await_staged(int layer) {
        if (!STAGED || warp >= parts<OF>(layer)) return;
        await_at(BARRIERS + warp * PRODUCTS + OF, BARRIERS + OF);
    }

    // Wait for all of the first layer.
    DEVICE void await_first() {
        await_staged<OF_QKV>(0), await_staged<OF_OUT>(0);
        await_staged<OF_LINEAR1>(0), await_staged<OF_LINEAR2>(0);
    }

    // Read the weights of a product that wait, before its inputs are waited for.
    template <int OF>
    DEVICE void take_staged(int layer) {
        if (!STAGED || warp >= parts<OF>(layer)) return;
        await_staged<OF>(layer);
        const uint4* own = slot_of<OF>() + lane;
#pragma unroll
        for (int i = 0; i < 8; i++) w[0][i] = own[i * FRAGMENT];
    }
};
