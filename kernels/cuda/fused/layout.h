// Sizes, memory layouts and arguments of the kernel. fused_decode.py defines the macros.

constexpr int K = 32;       // head size
constexpr int CHUNK = 128;  // inputs of a product that a warp processes at a time
constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = PIXELS * STEPS_PER_PIXEL, VALUES = STEPS * CHANNELS;
constexpr int OUTSIDE = 256;         // id of a value outside the image
constexpr int ROW_TILES = ROWS / 8;  // tiles of 8 rows, which are the columns of operand B
constexpr int BLOCKS_PER_HEAD = CLUSTER > HEADS ? CLUSTER / HEADS : 1;        // they split the values
constexpr int GROUP_HEADS = HEADS * BLOCKS_PER_HEAD / CLUSTER / HEAD_GROUPS;  // heads at a time
constexpr int TILES_PER_HEAD = 4 + 2 / BLOCKS_PER_HEAD;  // output tiles of q, k and the block's v
constexpr int FF_SLICE = FF / FF_SLICES;
constexpr int OUTPUT_TILES = (OUTPUTS + 15) / 16;
// Each warp has at most one head of one row and loads its state while the block computes q, k and v.
constexpr bool PRELOAD_STATE = CLUSTER > 1 && ROWS == 8 && ROWS * GROUP_HEADS <= WARPS;
constexpr float NORM_EPS = 1e-5f;

static_assert(D == K * HEADS && D % CHUNK == 0 && FF_SLICE % CHUNK == 0, "");
static_assert(BLOCKS_PER_HEAD <= 2 && GROUP_HEADS > 0, "");
static_assert(BLOCKS_PER_HEAD == 1 || PRELOAD_STATE, "");  // for `store_shared_z`
static_assert(CLUSTER == 1 || HEAD_GROUPS * FF_SLICES == 1, "");

// Offsets of a layer's weights, in fragments of 16 outputs × 16 inputs, and of its vectors.
constexpr int FRAGMENT = 32;  // uint4 per fragment
constexpr int TILE_D = D / 16 * FRAGMENT, TILE_FF = FF / 16 * FRAGMENT;
constexpr int OFFSET_QKV = 0, OFFSET_OUT = OFFSET_QKV + 3 * D / 16 * TILE_D;
constexpr int OFFSET_LINEAR1 = OFFSET_OUT + D / 16 * TILE_D;
constexpr int OFFSET_LINEAR2 = OFFSET_LINEAR1 + FF / 16 * TILE_D;
constexpr int LAYER_WEIGHTS = OFFSET_LINEAR2 + D / 16 * TILE_FF;
// With SPLIT_BF16, the inputs and weights of the first feed-forward product and of the head are sums of
// two bfloat16, high and low. The low weights of the head follow the head, then those of the
// feed-forward product.
constexpr int SPLIT_IN = SPLIT_BF16 ? 3 * D : D;  // high × high, high × low, low × high
constexpr int HEAD_IN = CATEGORICAL ? D : SPLIT_IN;
constexpr int HEAD_WEIGHTS = OUTPUT_TILES * TILE_D;
constexpr int BIAS_QKV = 0, BIAS_OUT = BIAS_QKV + 3 * D, BIAS_LINEAR1 = BIAS_OUT + D;
constexpr int BIAS_LINEAR2 = BIAS_LINEAR1 + FF;
constexpr int VECTOR_NORM1 = BIAS_LINEAR2 + D, VECTOR_NORM2 = VECTOR_NORM1 + 2 * D;
constexpr int CONV = RING > 0 ? 5 * D : 0;
constexpr int VECTOR_CONV1 = VECTOR_NORM2 + 2 * D, VECTOR_CONV2 = VECTOR_CONV1 + CONV;
constexpr int LAYER_VECTORS = VECTOR_CONV2 + CONV;

// Mbarriers of a block in a cluster: one for each kind of data from the cluster's blocks and one for a
// layer's vectors. With STAGE_WEIGHTS each warp also has one for its weights of each product.
enum { BARRIER_O, BARRIER_Y, BARRIER_HIDDEN, BARRIER_PARAMETERS, BARRIER_VECTORS, BARRIERS };
enum { PRODUCT_QKV, PRODUCT_OUT, PRODUCT_LINEAR1, PRODUCT_LINEAR2, PRODUCTS };
constexpr int MBARRIERS = CLUSTER > 1 ? BARRIERS + STAGE_WEIGHTS * WARPS * PRODUCTS : 0;

// Sampling options and uniforms of a row's step, and the sampled values.
struct RowSample {
    float temperature, top_p, guidance;
    int known;    // whether the pixel is known
    int is_twin;  // whether the row is the twin of the previous row
    int twin;     // slot of the row's twin, or -1
    float uniform[DRAWS];
    int values[CHANNELS];
    int step;  // step that has been sampled but not scored, or -1
};

// Shared memory. Rows are padded so that the rows of a tile are in different banks.
constexpr int STREAM_STRIDE = D + 4, INPUT_STRIDE = D + 8;
constexpr int QKV_STRIDE = 96 * GROUP_HEADS + 8, HIDDEN_STRIDE = FF_SLICE + 8;
constexpr int PARAMETER_STRIDE = 16 * OUTPUT_TILES;  // float32; the others are bfloat16
// q, k and v, hidden features and parameters share one place.
constexpr int SCRATCH_STRIDE = QKV_STRIDE > HIDDEN_STRIDE && QKV_STRIDE > 2 * PARAMETER_STRIDE ? QKV_STRIDE
    : HIDDEN_STRIDE > 2 * PARAMETER_STRIDE ? HIDDEN_STRIDE : 2 * PARAMETER_STRIDE;
constexpr int FINAL_VECTORS = 2 * D + PARAMETER_STRIDE;  // final norm and the head's bias
// Vectors of two layers and the final ones; biases of one layer for a cluster of one block.
constexpr int VECTOR_FLOATS = CLUSTER > 1 ? 2 * LAYER_VECTORS + FINAL_VECTORS : VECTOR_NORM1;
constexpr int PARTIAL_STRIDE = 20;
constexpr int ROW_BYTES = 4 * STREAM_STRIDE * (CLUSTER > 1 ? 2 : 1)
    + 2 * ((2 + SPLIT_BF16) * INPUT_STRIDE + SCRATCH_STRIDE) + 16;
constexpr int WORK_BYTES = ROWS * ROW_BYTES + 8 * MBARRIERS + (CLUSTER > 1 ? ROWS * sizeof(RowSample) : 0)
    + 4 * ((CLUSTER > 1 ? 2 * WARPS * ROWS * PARTIAL_STRIDE : 0) + VECTOR_FLOATS);
// Staged weights of a layer, for this block's outputs.
constexpr int STAGE_BYTES = STAGE_WEIGHTS * 2 * (16 * GROUP_HEADS * TILES_PER_HEAD * D
    + (D * D + SPLIT_IN * FF + FF * D) / CLUSTER);
constexpr int SHARED_BYTES = (WORK_BYTES + 15) / 16 * 16 + STAGE_BYTES;

struct Arguments {
    const uint4* weights;   // [LAYERS * LAYER_WEIGHTS + the head's + the low parts with SPLIT_BF16]
    const float* vectors;   // [LAYERS * LAYER_VECTORS + FINAL_VECTORS]
    const int* slots;       // [rows]
    int* positions;         // [slots]
    unsigned char* canvas;  // [slots, STEPS * CHANNELS]
    const int* label;       // [slots], -1 for none
    const int* context_index;    // [STEPS, CONTEXT], indices into an image's canvas, -1 for outside
    const float* value_table;    // [CONTEXT, 257, EMBEDDING_SIZE]
    const float* step_table;     // [STEPS, D]
    const float* label_table;    // [CLASSES + 1, D]
    float* kv;              // [LAYERS, slots, HEADS, K, K]
    float* z;               // [LAYERS, slots, HEADS, K]
    u16* pending;           // [LAYERS, slots, HEADS, WRITE_INTERVAL - 1, 2, K], bfloat16
    float* ring;            // [2 LAYERS, slots, RING, D]
    const u64 *seed, *particle;   // [slots]
    const float *temperature, *top_p, *guidance;  // [slots]
    const int* twin;        // [slots], -1 for none
    const unsigned char* known;  // [slots, PIXELS]
    float* bits;            // [slots, PIXELS]
    int rows, rows_per_cluster, slot_count;
    int pixels;             // to draw per row
};

DEVICE float low(u32 x) { return float_of(x << 16); }
DEVICE float high(u32 x) { return float_of(x & 0xffff0000u); }

// phi = elu + 1 (eq. 7)
DEVICE float feature_map(float x) { return fmaxf(x, 0.0f) + expf(fminf(x, 0.0f)); }

DEVICE float activate(float x) {
    return GELU ? 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)) : fmaxf(x, 0.0f);
}
