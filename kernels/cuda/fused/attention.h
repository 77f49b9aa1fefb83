// Linear attention with the states of rows (eq. 18-20). A state is written every WRITE_INTERVAL-th step;
// in between, keys and values are appended to pending entries (see state.py).

constexpr int MAX_PENDING = WRITE_INTERVAL - 1;          // pending entries
constexpr int PENDING_PAIRS = (WRITE_INTERVAL + 1) / 2;  // pairs of them and the new entry
constexpr int PENDING_ENTRY = 2 * K;                     // numbers per entry: a key and a value

// State of one head of one row in the registers of a warp. Lane 8 g + c holds rows 8 g ... 8 g + 7 and
// columns 4 c ... 4 c + 3 of S, and one element of z. It also holds two elements of the pending keys,
// of entries 0, 2, ... in lanes 0 ... 15 and of entries 1, 3, ... in the others, and element 4 c + g of
// the pending values, which is the output element that it computes.
struct State {
    float4 s[8];
    float z;
    u32 keys[PENDING_PAIRS];
    u16 values[MAX_PENDING > 0 ? MAX_PENDING : 1];
};

struct Attention : Matmul {
    State own;  // state of the warp's head and row, with PRELOAD_STATE

    using Matmul::Matmul;

    // First head of a group of heads of this block.
    DEVICE int first_head(int group) const {
        return (rank / BLOCKS_PER_HEAD * HEAD_GROUPS + group) * GROUP_HEADS;
    }

    // Whether this lane's columns of S belong to this block.
    DEVICE bool owns_values() const {
        return BLOCKS_PER_HEAD == 1 || lane % 8 / (8 / BLOCKS_PER_HEAD) == rank % BLOCKS_PER_HEAD;
    }

    DEVICE int value_index() const { return lane % 8 * 4 + lane / 8; }

    DEVICE int pending_count(int n) const { return (u32)(step[n] - FIRST_STEP) % WRITE_INTERVAL; }

    DEVICE u32 state_index(int layer, int n, int head) const {
        return ((u32)layer * a.slot_count + active_slot[n]) * HEADS + head;
    }

    // Addresses of a lane's part of a state, with the loop-invariant terms first.
    DEVICE float4* s_at(u32 index) const {
        return (float4*)a.kv + (lane / 8 * (2 * K) + lane % 8) + (u64)index * (K * K / 4);
    }

    DEVICE float* z_at(u32 index) const { return a.z + lane + (u64)index * K; }

    DEVICE u16* pending_at(u32 index, int lane_offset = 0) const {
        return a.pending + lane_offset + (u64)index * (MAX_PENDING * PENDING_ENTRY);
    }

    DEVICE void load_state(State& state, bool any, int layer, int n, int head) const {
        if (!any) {  // assigning zeros ends the lifetime of the old registers
            state = State();
            return;
        }
        const u32 index = state_index(layer, n, head);
        const float4* s = s_at(index);
        const u32* key = (const u32*)pending_at(index, lane / 16 * PENDING_ENTRY + lane % 16 * 2);
        const u16* value = pending_at(index, K + value_index());
        const int pending = pending_count(n);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            state.s[i] = owns_values() ? load_streaming(s + i * (K / 4))
                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        state.z = load_streaming(z_at(index));
#pragma unroll
        for (int i = 0; i < PENDING_PAIRS; i++) {
            state.keys[i] = 2 * i + lane / 16 < pending ? key[i * PENDING_ENTRY] : 0;
        }
#pragma unroll
        for (int i = 0; i < MAX_PENDING; i++) {
            state.values[i] = i < pending ? value[i * PENDING_ENTRY] : 0;
        }
    }

    // q, k and v of a head of row n.
    DEVICE const u16* qkv_row(int n, int head_in_group) const {
        return scratch + n * QKV_STRIDE + 96 * head_in_group;
    }

    // Compute o from S and z in memory, the pending entries and the new entry.
    DEVICE void attend_head(const State& state, int n, int head, int head_in_group) {
        const u16 *row = qkv_row(n, head_in_group), *new_entry = row + K;
        const uint4 query = *(const uint4*)(row + lane / 8 * 8);
        const u32 queries[4] = {query.x, query.y, query.z, query.w};
        float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float q = i % 2 ? high(queries[i / 2]) : low(queries[i / 2]);
            out[0] = fma_rn(q, state.s[i].x, out[0]);
            out[1] = fma_rn(q, state.s[i].y, out[1]);
            out[2] = fma_rn(q, state.s[i].z, out[2]);
            out[3] = fma_rn(q, state.s[i].w, out[3]);
        }
        // Sum over all keys; each lane keeps one value.
        const bool upper = lane >= 16, odd = lane / 8 % 2;
        const float one = (upper ? out[2] : out[0]) + shuffle_xor(upper ? out[0] : out[2], 16);
        const float two = (upper ? out[3] : out[1]) + shuffle_xor(upper ? out[1] : out[3], 16);
        float value = (odd ? two : one) + shuffle_xor(odd ? one : two, 8);
        // q · k of all entries and q · z, reduced together.
        const u32 pair = ((const u32*)row)[lane % 16], new_key = ((const u32*)new_entry)[lane % 16];
        float part[PENDING_PAIRS + 1];
#pragma unroll
        for (int i = 0; i < PENDING_PAIRS; i++) {
            const bool is_new = i == MAX_PENDING / 2 && lane / 16 == MAX_PENDING % 2;
            const u32 key = is_new ? new_key : state.keys[i];
            part[i] = fma_rn(high(pair), high(key), low(pair) * low(key));
        }
        part[PENDING_PAIRS] = low((u32)row[lane]) * state.z;
        part[PENDING_PAIRS] += shuffle_xor(part[PENDING_PAIRS], 16);
        warp_sums(part, 8);
        float sum = part[PENDING_PAIRS];
#pragma unroll
        for (int i = 0; i < WRITE_INTERVAL; i++) {
            const float score = float_of(shuffle(bits_of(part[i / 2]), i % 2 * 16));
            sum += score;
            const u32 v = i < MAX_PENDING ? state.values[i] : new_entry[K + value_index()];
            value = fma_rn(score, low(v), value);
        }
        store_output(o + n * INPUT_STRIDE + head * K, value * reciprocal(sum + ATTENTION_EPS));
    }

    // Add a key and its value to S and z.
    DEVICE void add_entry(State& state, const u16* key) const {
        const uint4 eight = *(const uint4*)(key + lane / 8 * 8);
        const uint2 four = *(const uint2*)(key + K + lane % 8 * 4);
        const u32 keys[4] = {eight.x, eight.y, eight.z, eight.w};
        state.z += low((u32)key[lane]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float k = i % 2 ? high(keys[i / 2]) : low(keys[i / 2]);
            state.s[i].x = fma_rn(k, low(four.x), state.s[i].x);
            state.s[i].y = fma_rn(k, high(four.x), state.s[i].y);
            state.s[i].z = fma_rn(k, low(four.y), state.s[i].z);
            state.s[i].w = fma_rn(k, high(four.y), state.s[i].w);
        }
    }

    // Append the new entry, or add all entries to S and z and write them.
    DEVICE void update_state(State& state, int layer, int n, int head, int head_in_group) {
        const u32 index = state_index(layer, n, head);
        const u16* new_entry = qkv_row(n, head_in_group) + K;
        u16* entries = pending_at(index);
        const int pending = pending_count(n);
        if (pending < MAX_PENDING) {
            if (BLOCKS_PER_HEAD == 1 || lane < 16 || lane / 8 - 2 == rank % BLOCKS_PER_HEAD) {
                ((u32*)(entries + pending * PENDING_ENTRY))[lane] = ((const u32*)new_entry)[lane];
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < MAX_PENDING; i++) add_entry(state, entries + i * PENDING_ENTRY);
        add_entry(state, new_entry);
        if (owns_values()) {
#pragma unroll
            for (int i = 0; i < 8; i++) store_streaming(s_at(index) + i * (K / 4), state.s[i]);
        }
        if (BLOCKS_PER_HEAD == 1) store_streaming(z_at(index), state.z);
    }

    // Write z of a head that blocks share. Each block writes the same z after all have read the old one.
    DEVICE void store_shared_z(int layer, int n, int head) {
        if (pending_count(n) == MAX_PENDING) store_streaming(z_at(state_index(layer, n, head)), own.z);
    }

    // Store this lane's output. In a cluster, eight outputs are packed and sent to every eighth block.
    DEVICE void store_output(u16* to, float x) {
        if (CLUSTER == 1) {
            to[value_index()] = (u16)pack_bf16(x, 0.0f);
            return;
        }
        const float neighbour = shuffle_xor(x, 8);
        const u32 two = lane / 8 % 2 ? pack_bf16(neighbour, x) : pack_bf16(x, neighbour);
        const u32 others = shuffle(two, lane ^ 16);
        const u32 one = lane < 16 ? two : others, last = lane < 16 ? others : two;
        const u32 next_one = shuffle(one, lane ^ 1), next_last = shuffle(last, lane ^ 1);
        const bool odd = lane % 2;
        const u32 eight[4] = {
            odd ? next_one : one, odd ? next_last : last, odd ? one : next_one, odd ? last : next_last
        };
        for (int block = lane / 8 + odd * 4; block < CLUSTER && owns_values(); block += 8) {
            store_remote(to + lane % 8 / 2 * 8, block, eight, BARRIER_O);
        }
    }

    // Index of the warp's only (row, head) pair, with PRELOAD_STATE.
    DEVICE int own_state_index() const { return WARPS - 1 - warp; }

    DEVICE bool has_own_state() const {
        const int n = own_state_index() / GROUP_HEADS;
        return PRELOAD_STATE && n < row_count && is_active(n);
    }

    DEVICE void load_own_state(int layer) {
        if (!PRELOAD_STATE) return;
        const int n = own_state_index() / GROUP_HEADS, head0 = own_state_index() % GROUP_HEADS;
        load_state(own, has_own_state(), layer, n, first_head(0) + head0);
    }

    // The block's (row, head) pairs are processed in rounds, with STATES_PER_WARP pairs per warp.
    static constexpr int ROUND = WARPS * STATES_PER_WARP;

    DEVICE bool is_state(u32 pair) const {
        return pair < row_count * GROUP_HEADS && is_active(pair / GROUP_HEADS);
    }

    DEVICE void load_state_at(State& state, int layer, int head, u32 pair) const {
        load_state(state, is_state(pair), layer, pair / GROUP_HEADS, head + pair % GROUP_HEADS);
    }

    // Prefetch a state to L2, because the registers cannot hold more states.
    DEVICE void prefetch_state(int layer, int head, u32 pair) const {
        if (!is_state(pair)) return;
        const u32 index = state_index(layer, pair / GROUP_HEADS, head + pair % GROUP_HEADS);
        prefetch_l2(a.kv + lane * (K * K / 32) + (u64)index * (K * K));
        if (lane == 0) prefetch_l2(z_at(index));
        if (lane < MAX_PENDING) prefetch_l2(pending_at(index, lane * PENDING_ENTRY));
    }

    // Prefetch the states of the first two rounds, while a product leaves the memory idle.
    DEVICE void prefetch_states(int layer, int head) const {
        if (PRELOAD_STATE) return;
        for (int pair = warp; pair < 2 * ROUND; pair += WARPS) prefetch_state(layer, head, pair);
    }

    // Compute attention for all rows and the group of heads that starts at `head`.
    DEVICE void attend_heads(int layer, int head) {
        State states[STATES_PER_WARP];
#pragma unroll
        for (int i = 0; i < STATES_PER_WARP; i++) {
            load_state_at(states[i], layer, head, warp * STATES_PER_WARP + i);
        }
#pragma unroll 1
        for (int first = warp * STATES_PER_WARP; first < row_count * GROUP_HEADS; first += ROUND) {
#pragma unroll
            for (int i = 0; i < STATES_PER_WARP; i++) {
                const u32 pair = first + i;
                const int n = pair / GROUP_HEADS, head_in_group = pair % GROUP_HEADS;
                if (pair >= row_count * GROUP_HEADS) break;
                attend_head(states[i], n, head + head_in_group, head_in_group);
                if (is_active(n)) {
                    update_state(states[i], layer, n, head + head_in_group, head_in_group);
                }
                load_state_at(states[i], layer, head, pair + ROUND);
                prefetch_state(layer, head, pair + 2 * ROUND);
            }
        }
    }
};
