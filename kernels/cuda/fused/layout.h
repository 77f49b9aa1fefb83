// What the kernel is compiled for, how that lies in memory, and its arguments.

constexpr int K = 32;  // features of a head
constexpr int CHUNK = 128;
constexpr int THREADS = 32 * WARPS, STEPS = PIXELS * PARTS, VALUES = STEPS * CHANNELS, OUTSIDE = 256;
constexpr int COLS = ROWS / 8;  // tiles of rows: they are the columns of a product here
constexpr int SHARERS = CLUSTER > HEADS ? CLUSTER / HEADS : 1;  // blocks that share a head's values
constexpr int MINE = HEADS * SHARERS / CLUSTER / GROUPS;        // heads that a block has at a time
constexpr int HEAD_TILES = 4 + 2 / SHARERS;                     // of q, k, and its values
constexpr int SLICE = FF / SLICES;
constexpr int OUTPUT_TILES = (OUTPUTS + 15) / 16;
// One head of one row for each warp: its state is read while the block computes q, k and v.
constexpr bool AHEAD = CLUSTER > 1 && ROWS == 8 && ROWS * MINE <= WARPS;
constexpr float EPS = 1e-6f, NORM_EPS = 1e-5f;

static_assert(D == K * HEADS && D % CHUNK == 0 && SLICE % CHUNK == 0, "");
static_assert(SHARERS <= 2 && MINE > 0, "");
static_assert(SHARERS == 1 || AHEAD, "");  // `keep_sum` has its own
static_assert(CLUSTER == 1 || GROUPS * SLICES == 1, "");

// Where a layer's weights are, in fragments of 16 outputs and 16 inputs, and what all blocks read.
constexpr int FRAGMENT = 32;  // of uint4
constexpr int TILE_D = D / 16 * FRAGMENT, TILE_FF = FF / 16 * FRAGMENT;
constexpr int OFFSET_QKV = 0, OFFSET_OUT = OFFSET_QKV + 3 * D / 16 * TILE_D;
constexpr int OFFSET_LINEAR1 = OFFSET_OUT + D / 16 * TILE_D;
constexpr int OFFSET_LINEAR2 = OFFSET_LINEAR1 + FF / 16 * TILE_D;
constexpr int LAYER_WEIGHTS = OFFSET_LINEAR2 + D / 16 * TILE_FF;
// Where EXACT the first feed-forward network's inputs and the head's are of two bfloat16, and their
// weights: what is left of the head's is behind the head, and then what is left of the others.
constexpr int EXACT_IN = EXACT ? 3 * D : D;  // high by high, high by low, low by high
constexpr int HEAD_IN = CATEGORICAL ? D : EXACT_IN;
constexpr int HEAD_WEIGHTS = OUTPUT_TILES * TILE_D;
constexpr int AT_QKV = 0, AT_OUT = AT_QKV + 3 * D, AT_LINEAR1 = AT_OUT + D;
constexpr int AT_LINEAR2 = AT_LINEAR1 + FF, AT_NORM1 = AT_LINEAR2 + D, AT_NORM2 = AT_NORM1 + 2 * D;
constexpr int AT_CONV1 = AT_NORM2 + 2 * D, CONV = RING > 0 ? 5 * D : 0, AT_CONV2 = AT_CONV1 + CONV;
constexpr int LAYER_VECTORS = AT_CONV2 + CONV;

// What comes to a block of a cluster, each counted by an mbarrier: from all its blocks, and a layer's
// vectors. Where STAGED each warp has others, for what waits of its weights of each product.
enum { BARRIER_O, BARRIER_Y, BARRIER_HIDDEN, BARRIER_PARAMETERS, BARRIER_VECTORS, BARRIERS };
enum { OF_QKV, OF_OUT, OF_LINEAR1, OF_LINEAR2, PRODUCTS };
constexpr int MBARRIERS = CLUSTER > 1 ? BARRIERS + STAGED * WARPS * PRODUCTS : 0;

struct Row {  // what is asked of an image's step, and what was decided
    float temperature, top_p, guidance;
    int known;    // whether its pixel is given
    int follows;  // whether it is the twin of the row before it
    int twin;     // the slot of its own twin, or -1
    float uniform[DRAWS];
    int values[CHANNELS];
    int step;  // that was decided and not weighed, or -1
};

// Shared memory, rows padded so that those of a tile are in different banks.
constexpr int X = D + 4, U = D + 8, HEADS_ROW = 96 * MINE + 8, HIDDEN_ROW = SLICE + 8;
constexpr int PARAMETERS_ROW = 16 * OUTPUT_TILES;  // in float32, in the same place
constexpr int MIDDLE = HEADS_ROW > HIDDEN_ROW && HEADS_ROW > 2 * PARAMETERS_ROW ? HEADS_ROW
    : HIDDEN_ROW > 2 * PARAMETERS_ROW ? HIDDEN_ROW : 2 * PARAMETERS_ROW;
constexpr int LAST = 2 * D + PARAMETERS_ROW;  // vectors behind the last layer's
constexpr int HELD = CLUSTER > 1 ? 2 * LAYER_VECTORS + LAST : AT_NORM1;  // of the vectors: see Rows
constexpr int PARTIAL = 20;
constexpr int OWN_BYTES = ROWS * (4 * X * (CLUSTER > 1 ? 2 : 1) + 2 * ((2 + EXACT) * U + MIDDLE) + 16)
    + 8 * MBARRIERS + (CLUSTER > 1 ? ROWS * sizeof(Row) : 0)
    + 4 * ((CLUSTER > 1 ? 2 * WARPS * ROWS * PARTIAL : 0) + HELD);
// A layer's weights, of this block's outputs, where they wait in shared memory.
constexpr int STAGED_BYTES = STAGED * 2 * (16 * MINE * HEAD_TILES * D
    + (D * D + EXACT_IN * FF + FF * D) / CLUSTER);
constexpr int SHARED_BYTES = (OWN_BYTES + 15) / 16 * 16 + STAGED_BYTES;

struct Arguments {
    const uint4* weights;   // [LAYERS * LAYER_WEIGHTS + the head's, and where EXACT what is left]
    const float* vectors;   // [LAYERS * LAYER_VECTORS + LAST]
    const int* slots;       // [rows]
    int* positions;         // [slots]
    unsigned char* canvas;  // [slots, STEPS * CHANNELS]
    const int* label;       // [slots], -1 for none
    const int* sources;     // [STEPS, PLACES], where in the canvas, -1 for outside
    const float* table;     // [PLACES, 257, CODE]
    const float* code;      // [STEPS, D]
    const float* label_table;  // [CLASSES + 1, D]
    float* kv;              // [LAYERS, slots, HEADS, K, K]
    float* z;               // [LAYERS, slots, HEADS, K]
    u16* waiting;           // [LAYERS, slots, HEADS, DELAY - 1, 2, K], bfloat16
    float* ring;            // [2 LAYERS, slots, RING, D]
    const float* tables;    // of the head, [pairs of channels, 256, 256]
    const u64 *seed, *particle;  // [slots], as all that follows
    const float *temperature, *top_p, *guidance;
    const int* twin;
    const unsigned char* known;  // [slots, PIXELS]
    float* bits;            // [slots, PIXELS]
    int rows, each, size, pixels;  // rows of all clusters, of one at most; slots; pixels to draw
};

DEVICE float low(u32 x) { return float_of(x << 16); }
DEVICE float high(u32 x) { return float_of(x & 0xffff0000u); }

// phi = elu + 1 (eq. 7)
DEVICE float feature(float x) { return fmaxf(x, 0.0f) + expf(fminf(x, 0.0f)); }

DEVICE float activate(float x) {
    return GELU ? 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)) : fmaxf(x, 0.0f);
}
