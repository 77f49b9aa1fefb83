// What attention does with the states of rows (eq. 18-20), written every DELAY-th step (state.py).

// One head of one row: a lane has 8 keys of 4 values of S, one key of z, and two numbers of each key
// and value that wait.
struct State {
    float4 s[8];
    float z;
    u32 wait[DELAY > 1 ? DELAY - 1 : 1];
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

    DEVICE int turn_of(int n) const { return (u32)(step[n] - FIRST) % DELAY; }

    DEVICE u64 place(int layer, int n, int head) const {
        return ((u64)layer * a.size + slot[n]) * HEADS + head;
    }

    DEVICE u32* waiting_at(u64 here) const {
        return (u32*)a.waiting + here * ((DELAY - 1) * K) + lane;
    }

    DEVICE float4* matrix_at(u64 here) const {
        return (float4*)(a.kv + here * (K * K) + lane / 8 * 8 * K) + lane % 8;
    }

    DEVICE void read(State& of, int layer, int n, int head) const {
        const u64 here = place(layer, n, head);
        const float4* s = matrix_at(here);
        const u32* wait = waiting_at(here);
        const int turn = turn_of(n);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            of.s[i] = has_values() ? pass(s + i * (K / 4)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        of.z = pass(a.z + here * K + lane);
#pragma unroll
        for (int i = 0; i < DELAY - 1; i++) of.wait[i] = i < turn ? wait[i * K] : 0;
    }

    // Add to `out` and `sum` what comes of a key and its value, two numbers of which each lane has.
    DEVICE void look_at(u32 word, u32 query, float (&out)[4], float& sum) const {
        const float part = fused(high(query), high(word), low(query) * low(word));
        const float score = sum_of(lane < 16 ? part : 0.0f);
        const u32 v01 = of_lane(word, 16 + lane % 8 * 2), v23 = of_lane(word, 17 + lane % 8 * 2);
        sum += score;
        out[0] = fused(score, low(v01), out[0]);
        out[1] = fused(score, high(v01), out[1]);
        out[2] = fused(score, low(v23), out[2]);
        out[3] = fused(score, high(v23), out[3]);
    }

    // Where q, k and v of a head of a row are; `mine` counts those that the block has at a time.
    DEVICE const u16* row_of(int n, int mine) const { return middle + n * HEADS_ROW + 96 * mine; }

    // Give o: of S and z as they were read, of what waits, and of what is new.
    DEVICE void attend_to(const State& of, int n, int head, int mine) {
        const u16* row = row_of(n, mine);
        const uint4 query = *(const uint4*)(row + lane / 8 * 8);
        const u32 queries[4] = {query.x, query.y, query.z, query.w};
        const u32 pair = ((const u32*)row)[lane % 16], word = ((const u32*)(row + 32))[lane];
        float sum = sum_of(low((u32)row[lane]) * of.z), out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float q = i % 2 ? high(queries[i / 2]) : low(queries[i / 2]);
            out[0] = fused(q, of.s[i].x, out[0]);
            out[1] = fused(q, of.s[i].y, out[1]);
            out[2] = fused(q, of.s[i].z, out[2]);
            out[3] = fused(q, of.s[i].w, out[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] += exchange(out[i], 16);
            out[i] += exchange(out[i], 8);
        }
#pragma unroll
        for (int i = 0; i < DELAY - 1; i++) look_at(of.wait[i], pair, out, sum);
        look_at(word, pair, out, sum);
        sum = inverse(sum + EPS);
        give_o(n, head, packed(out[0] * sum, out[1] * sum), packed(out[2] * sum, out[3] * sum));
    }

    // Add a key and its value to S and z.
    DEVICE void add(State& of, u32 word) const {
        const u32 mine = of_lane(word, lane / 2);
        const u32 v01 = of_lane(word, 16 + lane % 8 * 2), v23 = of_lane(word, 17 + lane % 8 * 2);
        of.z += lane % 2 ? high(mine) : low(mine);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 keys = of_lane(word, lane / 8 * 4 + i / 2);
            const float k = i % 2 ? high(keys) : low(keys);
            of.s[i].x = fused(k, low(v01), of.s[i].x);
            of.s[i].y = fused(k, high(v01), of.s[i].y);
            of.s[i].z = fused(k, low(v23), of.s[i].z);
            of.s[i].w = fused(k, high(v23), of.s[i].w);
        }
    }

    // Have the new key and value wait, or add all that waits to the sums and write those.
    DEVICE void keep(State& of, int layer, int n, int head, int mine) {
        const u64 here = place(layer, n, head);
        const u32 word = ((const u32*)(row_of(n, mine) + 32))[lane];
        const int turn = turn_of(n);
        if (turn < DELAY - 1) {
            if (SHARERS == 1 || lane < 16 || lane / 8 - 2 == rank % SHARERS) {
                waiting_at(here)[turn * K] = word;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < DELAY - 1; i++) add(of, of.wait[i]);
        add(of, word);
        if (has_values()) {
#pragma unroll
            for (int i = 0; i < 8; i++) put(matrix_at(here) + i * (K / 4), of.s[i]);
        }
        if (SHARERS == 1) put(a.z + here * K + lane, of.z);
    }

    // Of a head that blocks share, each keeps z, the same, once all have read what there was.
    DEVICE void keep_sum(int layer, int n, int head) {
        if (turn_of(n) == DELAY - 1) put(a.z + place(layer, n, head) * K + lane, ahead.z);
    }

    // Every lane with the same values has another block to give them to.
    DEVICE void give_o(int n, int head, u32 one, u32 two) {
        for (int to = lane / 8; to < CLUSTER && has_values(); to += 4) {
            push(o + n * U + head * K + lane % 8 * 4, to, one, two, OF_O);
        }
    }

    // The one head of one row that this warp has, where it has no more.
    DEVICE int own_pair() const { return WARPS - 1 - warp; }

    DEVICE bool has_own() const {
        return AHEAD && own_pair() / MINE < live && runs(own_pair() / MINE);
    }

    DEVICE void read_own(int layer) {
        if (has_own()) read(ahead, layer, own_pair() / MINE, head_of(0) + own_pair() % MINE);
    }

    // Have a state on its way to the cache: registers are too few for two.
    DEVICE void expect_state(int layer, int n, int head) const {
        const u64 here = place(layer, n, head);
        come_near(a.kv + here * (K * K) + lane * (K * K / 32));
        if (lane == 0) come_near(a.z + here * K);
        if (lane < DELAY - 1) come_near(waiting_at(here) + lane * (K - 1));
    }

    // All heads of all rows that the block has at a time, so many of them together.
    DEVICE void attend_all(int layer, int head) {
        const int count = live * MINE;
#pragma unroll 1
        for (int first = warp * TOGETHER; first < count; first += WARPS * TOGETHER) {
            State of[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int pair = first + i, next = pair + WARPS * TOGETHER;
                if (pair < count && runs(pair / MINE)) {
                    read(of[i], layer, pair / MINE, head + pair % MINE);
                }
                if (next < count && runs(next / MINE)) {
                    expect_state(layer, next / MINE, head + next % MINE);
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int pair = first + i;
                if (pair >= count) break;
                attend_to(of[i], pair / MINE, head + pair % MINE, pair % MINE);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int pair = first + i;
                if (pair >= count) break;
                if (runs(pair / MINE)) keep(of[i], layer, pair / MINE, head + pair % MINE, pair % MINE);
            }
        }
    }
};
