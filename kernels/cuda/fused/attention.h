// What attention does with the states of rows (eq. 18-20), written every DELAY-th step (state.py).

constexpr int WAITING = DELAY - 1;      // steps whose keys and values may wait beside the sums
constexpr int PAIRS = (DELAY + 1) / 2;  // of those and the new step, which are looked at by twos
constexpr int ENTRY = 2 * K;            // a key and its value

// One head of one row, which a warp has. Lane 8 g + c has keys 8 g ... 8 g + 7 of values 4 c ...
// 4 c + 3 of S, and a key of z. Of what waits it has two numbers of a key, lanes up to 15 of steps 0,
// 2, ..., the others of those between, and the value that it gives: 4 c + g.
struct State {
    float4 s[8];
    float z;
    u32 keys[PAIRS];
    u16 values[WAITING > 0 ? WAITING : 1];
};

struct Attention : Products {
    State ahead;  // of this warp's own head of a row

    using Products::Products;

    // The first of the heads that the block has at a time.
    DEVICE int head_of(int group) const { return (rank / SHARERS * GROUPS + group) * MINE; }

    // Whether this block has the values of S that this lane would have.
    DEVICE bool has_values() const {
        return SHARERS == 1 || lane % 8 / (8 / SHARERS) == rank % SHARERS;
    }

    DEVICE int own_value() const { return lane % 8 * 4 + lane / 8; }

    DEVICE int turn_of(int n) const { return (u32)(step[n] - FIRST) % DELAY; }

    DEVICE u32 place(int layer, int n, int head) const {
        return ((u32)layer * a.size + image[n]) * HEADS + head;
    }

    // A lane's places, what does not change first: it is worked out once.
    DEVICE float4* matrix_at(u32 here) const {
        return (float4*)a.kv + (lane / 8 * (2 * K) + lane % 8) + (u64)here * (K * K / 4);
    }

    DEVICE float* sum_at(u32 here) const { return a.z + lane + (u64)here * K; }

    DEVICE u16* waiting_at(u32 here, int of_lane = 0) const {
        return a.waiting + of_lane + (u64)here * (WAITING * ENTRY);
    }

    DEVICE void read(State& of, bool any, int layer, int n, int head) const {
        if (!any) {  // or its registers would be taken from all before
            of = State();
            return;
        }
        const u32 here = place(layer, n, head);
        const float4* s = matrix_at(here);
        const u32* key = (const u32*)waiting_at(here, lane / 16 * ENTRY + lane % 16 * 2);
        const u16* value = waiting_at(here, K + own_value());
        const int turn = turn_of(n);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            of.s[i] = has_values() ? load_streaming(s + i * (K / 4))
                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        of.z = load_streaming(sum_at(here));
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            of.keys[i] = 2 * i + lane / 16 < turn ? key[i * ENTRY] : 0;
        }
#pragma unroll
        for (int i = 0; i < WAITING; i++) {
            of.values[i] = i < turn ? value[i * ENTRY] : 0;
        }
    }

    // Where q, k and v of a head of a row are; `mine` counts those that the block has at a time.
    DEVICE const u16* row_of(int n, int mine) const { return middle + n * HEADS_ROW + 96 * mine; }

    // Give o: of S and z as they were read, of what waits, and of what is new.
    DEVICE void attend_to(const State& of, int n, int head, int mine) {
        const u16 *row = row_of(n, mine), *fresh = row + K;
        const uint4 query = *(const uint4*)(row + lane / 8 * 8);
        const u32 queries[4] = {query.x, query.y, query.z, query.w};
        float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float q = i % 2 ? high(queries[i / 2]) : low(queries[i / 2]);
            out[0] = fma_rn(q, of.s[i].x, out[0]);
            out[1] = fma_rn(q, of.s[i].y, out[1]);
            out[2] = fma_rn(q, of.s[i].z, out[2]);
            out[3] = fma_rn(q, of.s[i].w, out[3]);
        }
        // Over all keys, and each lane goes on with its own value.
        const bool upper = lane >= 16, odd = lane / 8 % 2;
        const float one = (upper ? out[2] : out[0]) + shuffle_xor(upper ? out[0] : out[2], 16);
        const float two = (upper ? out[3] : out[1]) + shuffle_xor(upper ? out[1] : out[3], 16);
        float value = (odd ? two : one) + shuffle_xor(odd ? one : two, 8);
        // q k of all steps and q z, added up together.
        const u32 pair = ((const u32*)row)[lane % 16], new_key = ((const u32*)fresh)[lane % 16];
        float part[PAIRS + 1];
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const u32 key = i == WAITING / 2 && lane / 16 == WAITING % 2 ? new_key : of.keys[i];
            part[i] = fma_rn(high(pair), high(key), low(pair) * low(key));
        }
        part[PAIRS] = low((u32)row[lane]) * of.z;
        part[PAIRS] += shuffle_xor(part[PAIRS], 16);
        add_lanes(part, 8);
        float sum = part[PAIRS];
#pragma unroll
        for (int i = 0; i < DELAY; i++) {
            const float score = float_of(shuffle(bits_of(part[i / 2]), i % 2 * 16));
            sum += score;
            const u32 v = i < WAITING ? of.values[i] : fresh[K + own_value()];
            value = fma_rn(score, low(v), value);
        }
        give_o(o + n * U + head * K, value * reciprocal(sum + EPS));
    }

    // Add a key and its value to S and z.
    DEVICE void add(State& of, const u16* key) const {
        const uint4 eight = *(const uint4*)(key + lane / 8 * 8);
        const uint2 four = *(const uint2*)(key + K + lane % 8 * 4);
        const u32 keys[4] = {eight.x, eight.y, eight.z, eight.w};
        of.z += low((u32)key[lane]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float k = i % 2 ? high(keys[i / 2]) : low(keys[i / 2]);
            of.s[i].x = fma_rn(k, low(four.x), of.s[i].x);
            of.s[i].y = fma_rn(k, high(four.x), of.s[i].y);
            of.s[i].z = fma_rn(k, low(four.y), of.s[i].z);
            of.s[i].w = fma_rn(k, high(four.y), of.s[i].w);
        }
    }

    // Have the new key and value wait, or add all that waits to the sums and write those.
    DEVICE void keep(State& of, int layer, int n, int head, int mine) {
        const u32 here = place(layer, n, head);
        const u16* fresh = row_of(n, mine) + K;
        u16* wait = waiting_at(here);
        const int turn = turn_of(n);
        if (turn < WAITING) {
            if (SHARERS == 1 || lane < 16 || lane / 8 - 2 == rank % SHARERS) {
                ((u32*)(wait + turn * ENTRY))[lane] = ((const u32*)fresh)[lane];
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < WAITING; i++) add(of, wait + i * ENTRY);
        add(of, fresh);
        if (has_values()) {
#pragma unroll
            for (int i = 0; i < 8; i++) store_streaming(matrix_at(here) + i * (K / 4), of.s[i]);
        }
        if (SHARERS == 1) store_streaming(sum_at(here), of.z);
    }

    // Of a head that blocks share, each keeps z, the same, once all have read what there was.
    DEVICE void keep_sum(int layer, int n, int head) {
        if (turn_of(n) == WAITING) store_streaming(sum_at(place(layer, n, head)), ahead.z);
    }

    // Store this lane's value of a head, or give eight lanes' to the blocks, each to every eighth.
    DEVICE void give_o(u16* to, float x) {
        if (CLUSTER == 1) {
            to[own_value()] = (u16)pack_bf16(x, 0.0f);
            return;
        }
        const float beside = shuffle_xor(x, 8);
        const u32 two = lane / 8 % 2 ? pack_bf16(beside, x) : pack_bf16(x, beside);
        const u32 others = shuffle(two, lane ^ 16);
        const u32 one = lane < 16 ? two : others, last = lane < 16 ? others : two;
        const u32 next_one = shuffle(one, lane ^ 1), next_last = shuffle(last, lane ^ 1);
        const bool odd = lane % 2;
        const u32 eight[4] = {
            odd ? next_one : one, odd ? next_last : last, odd ? one : next_one, odd ? last : next_last
        };
        for (int where = lane / 8 + odd * 4; where < CLUSTER && has_values(); where += 8) {
            push(to + lane % 8 / 2 * 8, where, eight, BARRIER_O);
        }
    }

    // The one head of one row that this warp has, where it has no more.
    DEVICE int own_pair() const { return WARPS - 1 - warp; }

    DEVICE bool has_own() const {
        return AHEAD && own_pair() / MINE < live && runs(own_pair() / MINE);
    }

    DEVICE void read_own(int layer) {
        if (!AHEAD) return;
        read(ahead, has_own(), layer, own_pair() / MINE, head_of(0) + own_pair() % MINE);
    }

    // All heads of all rows that the block has at a time are TOGETHER to a warp, round after round.
    static constexpr int ROUND = WARPS * TOGETHER;

    DEVICE bool is_state(u32 pair) const { return pair < live * MINE && runs(pair / MINE); }

    DEVICE void read_pair(State& of, int layer, int head, u32 pair) const {
        read(of, is_state(pair), layer, pair / MINE, head + pair % MINE);
    }

    // Have a state on its way to the cache: registers are too few for more.
    DEVICE void expect_pair(int layer, int head, u32 pair) const {
        if (!is_state(pair)) return;
        const u32 here = place(layer, pair / MINE, head + pair % MINE);
        prefetch_l2(a.kv + lane * (K * K / 32) + (u64)here * (K * K));
        if (lane == 0) prefetch_l2(sum_at(here));
        if (lane < WAITING) prefetch_l2(waiting_at(here, lane * ENTRY));
    }

    // Those of the first two rounds, while the block multiplies and memory has nothing to do.
    DEVICE void expect_first(int layer, int head) const {
        if (AHEAD) return;
        for (int pair = warp; pair < 2 * ROUND; pair += WARPS) expect_pair(layer, head, pair);
    }

    DEVICE void attend_all(int layer, int head) {
        State of[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) read_pair(of[i], layer, head, warp * TOGETHER + i);
#pragma unroll 1
        for (int first = warp * TOGETHER; first < live * MINE; first += ROUND) {
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const u32 pair = first + i;
                const int n = pair / MINE, mine = pair % MINE;
                if (pair >= live * MINE) break;
                attend_to(of[i], n, head + mine, mine);
                if (runs(n)) keep(of[i], layer, n, head + mine, mine);
                read_pair(of[i], layer, head, pair + ROUND);
                expect_pair(layer, head, pair + 2 * ROUND);
            }
        }
    }
};
