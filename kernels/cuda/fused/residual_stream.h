// Rows of the stream in a block: where their features are, and all that is done row by row.

struct Rows {
    const Arguments& a;
    int thread, warp, lane, rank;
    int first, live;    // the first row, and how many there are
    float *x, *y;       // the stream, and what is added up for it: one place where a block is alone
    float* vectors;     // of this layer and the next in turn, and those behind the last; or biases
    u16 *u, *o;         // what the next product sees, and what attention gave
    u16* rest;          // what `u` leaves of its numbers, where EXACT
    u16* middle;        // q, k and v; hidden features; parameters
    int *slot, *step;   // of each row; -1 where there is none
    int* image;         // the slot of a row that the network runs for now, or -1
    float* spent;       // bits of its pixel
    Row* asked;         // of its step, where blocks are in clusters
    u64* mbarriers;     // what comes to this block, counted
    int times = 0;      // a bit of each, then of the warp's own: whether it came an odd number of times
    int parity = 0;     // which of the vectors are this layer's

    DEVICE explicit Rows(const Arguments& a) : a(a) {}

    // Store where another block has what lies at `to` here, to be counted there: words, numbers, or
    // numbers rounded to bfloat16.
    template <int COUNT>
    DEVICE void push(void* to, int where, const u32 (&x)[COUNT], int of) {
        store_async(to, where, x, mbarriers + of);
    }

    template <int COUNT>
    DEVICE void push_floats(void* to, int where, const float (&x)[COUNT], int of) {
        u32 words[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[i] = bits_of(x[i]);
        push(to, where, words, of);
    }

    template <int COUNT>
    DEVICE void push_rounded(void* to, int where, const float (&x)[COUNT], int of) {
        u32 words[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        push(to, where, words, of);
    }

    // Wait until all has come that is to come this time, to be counted at this place of `mbarriers`.
    DEVICE void await_at(int place, int of) {
        mbarrier_wait(mbarriers + place, times >> of & 1);
        times ^= 1 << of;
    }

    DEVICE void await(int of) {
        if (CLUSTER == 1) return;
        await_at(of, of);
        if (thread == 0) expect(of);
    }

    // Say how much is to come from the blocks the next time.
    DEVICE void expect(int of) {
        const int each = of == BARRIER_O ? 2 * D : of == BARRIER_Y ? 4 * D
            : of == BARRIER_HIDDEN ? 2 * FF : 4 * PARAMETERS_ROW;
        mbarrier_expect(mbarriers + of, live * each);
    }

    // Whether a row has an image that is not through, and whether the network runs for it.
    DEVICE bool alive(int n) const { return slot[n] >= 0 && step[n] < STEPS; }

    DEVICE bool runs(int n) const { return image[n] >= 0; }

    DEVICE void arrive_at(int n, int next) {
        step[n] = next;
        image[n] = alive(n) && next >= FIRST ? slot[n] : -1;
    }

    DEVICE float* half_of_vectors(int which) const { return vectors + which * LAYER_VECTORS; }

    DEVICE const float* last_vectors() const {
        return CLUSTER > 1 ? half_of_vectors(2) : a.vectors + LAYERS * LAYER_VECTORS;
    }

    // Begin to copy what a layer adds and scales with to where that of the one before the last was.
    // So many bytes `more` are to come with it.
    DEVICE void bring_vectors(int layer, int more = 0) const {
        if (thread > 0) return;
        u64* counted = mbarriers + BARRIER_VECTORS;
        mbarrier_expect(counted, 4 * LAYER_VECTORS + more);
        copy_bulk(
            half_of_vectors(parity), a.vectors + layer * LAYER_VECTORS, 4 * LAYER_VECTORS, counted
        );
    }

    // The same of a block by itself: biases alone, which it has one place for.
    DEVICE void bring_biases(int layer) const {
        const float* from = a.vectors + layer * LAYER_VECTORS;
        for (int i = 4 * thread; i < AT_NORM1; i += 4 * THREADS) {
            copy_async((uint4*)(vectors + i), (const uint4*)(from + i));
        }
    }

    // Rows of features, D / 128 times 4 to each lane: give their layer norms. Sums and squares are of
    // what is left of each feature without `about`, one of them, and are added up together: in turn
    // one would wait for the other (Chan, Golub and LeVeque, 1983).
    template <int COUNT>
    DEVICE void normalise(float (&v)[COUNT][D / 32], const float (&about)[COUNT], const float* weight) {
        float sums[2 * COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            sums[2 * j] = sums[2 * j + 1] = 0.0f;
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                v[j][i] -= about[j], sums[2 * j] += v[j][i];
                sums[2 * j + 1] = fma_rn(v[j][i], v[j][i], sums[2 * j + 1]);
            }
        }
        add_lanes(sums);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float mean = sums[2 * j] * (1.0f / D);
            const float variance = fmaxf(fma_rn(-mean, mean, sums[2 * j + 1] * (1.0f / D)), 0.0f);
            const float scale = rsqrtf(variance + NORM_EPS);
#pragma unroll
            for (int i = 0; i < D / 32; i += 4) {
                const int d = i / 4 * 128 + lane * 4;
                const float4 by = *(const float4*)(weight + d), more = *(const float4*)(weight + D + d);
                v[j][i] = fma_rn((v[j][i] - mean) * scale, by.x, more.x);
                v[j][i + 1] = fma_rn((v[j][i + 1] - mean) * scale, by.y, more.y);
                v[j][i + 2] = fma_rn((v[j][i + 2] - mean) * scale, by.z, more.z);
                v[j][i + 3] = fma_rn((v[j][i + 3] - mean) * scale, by.w, more.w);
            }
        }
    }

    // Add to a row what its short convolution sees of the steps before, and keep what it is now.
    DEVICE void convolve(float (&v)[D / 32], const float* weight, float* ring, int n) {
        if (!alive(n)) return;
        const int t = step[n];
        float* mine = ring + (long long)slot[n] * (RING * D);
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const int d = i / 4 * 128 + lane * 4 + i % 4;
            float sum = weight[d] * v[i];
#pragma unroll
            for (int tap = 1; tap < 5; tap++) {
                const int back = tap == 1 ? PARTS : tap == 2 ? COLUMNS + PARTS
                    : tap == 3 ? COLUMNS : COLUMNS - PARTS;
                const bool inside = tap == 3 ? true
                    : tap == 4 ? t % COLUMNS < COLUMNS - PARTS : t % COLUMNS >= PARTS;
                if (t >= back && inside) {
                    sum = fma_rn(weight[tap * D + d], mine[(t + RING - back) % RING * D + d], sum);
                }
            }
            mine[t % RING * D + d] = v[i];
            v[i] = sum;
        }
    }

    // Take rows of the stream: keep what goes on, and give the next product what it sees. `norm`,
    // `behind`, a norm after the norm, and `conv` may be null. `about` is each row's first feature.
    template <int COUNT>
    DEVICE void take(
        float (&v)[COUNT][D / 32], const int (&rows)[COUNT], const float (&about)[COUNT],
        const float* norm, const float* behind, const float* conv, float* ring
    ) {
        if (norm && !PRE) normalise(v, about, norm);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            float4* on = (float4*)(x + rows[j] * X) + lane;
#pragma unroll
            for (int i = 0; i < D / 128; i++) {
                on[32 * i] = make_float4(v[j][4 * i], v[j][4 * i + 1], v[j][4 * i + 2], v[j][4 * i + 3]);
            }
        }
        if (norm && PRE) normalise(v, about, norm);
        const float nothing[COUNT] = {};  // they are normal already
        if (behind) normalise(v, nothing, behind);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            if (conv) convolve(v[j], conv, ring, rows[j]);
            uint2* seen = (uint2*)(u + rows[j] * U) + lane;
            uint2* left = (uint2*)(rest + rows[j] * U) + lane;
#pragma unroll
            for (int i = 0; i < D / 128; i++) {
                const float* x = v[j] + 4 * i;
                const u32 one = pack_bf16(x[0], x[1]), two = pack_bf16(x[2], x[3]);
                seen[32 * i] = make_uint2(one, two);
                if (EXACT) {
                    left[32 * i] = make_uint2(
                        pack_bf16(x[0] - low(one), x[1] - high(one)),
                        pack_bf16(x[2] - low(two), x[3] - high(two))
                    );
                }
            }
        }
    }

    DEVICE void settle(
        const float* from, const float* norm, const float* behind, const float* conv, float* ring
    ) {
        constexpr int COUNT = ROWS > WARPS ? 2 : 1;  // at a time: one waits long for other lanes
        for (int n = warp; n < live; n += COUNT * WARPS) {
            float v[COUNT][D / 32];
            float about[COUNT];
            int rows[COUNT];
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                rows[j] = n + j * WARPS < live ? n + j * WARPS : n;
                about[j] = from[rows[j] * X];
                const float4* row = (const float4*)(from + rows[j] * X) + lane;
#pragma unroll
                for (int i = 0; i < D / 128; i++) {
                    const float4 four = row[32 * i];
                    v[j][4 * i] = four.x, v[j][4 * i + 1] = four.y;
                    v[j][4 * i + 2] = four.z, v[j][4 * i + 3] = four.w;
                }
            }
            take(v, rows, about, norm, behind, conv, ring);
        }
        if (CLUSTER == 1) wait_copies();  // the biases
        sync_block();
    }

    // Sum a row of the table for what stands at each place, and the codes of step and label.
    DEVICE void embed() {
        const float* vectors0 = CLUSTER > 1 ? half_of_vectors(parity) : a.vectors;
        for (int n = warp; n < live; n += WARPS) {
            if (!runs(n)) continue;
            const long long t = step[n], image = slot[n];
            const int label = CLASSES > 0 ? a.label[image] : 0;
            const float* codes = a.code + t * D + lane * 4;
            const float* labels = a.label_table + (label < 0 ? CLASSES : label) * D + lane * 4;
            float v[1][D / 32];
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                const int d = i / 4 * 128 + i % 4;
                v[0][i] = codes[d] + (CLASSES > 0 ? labels[d] : 0.0f);
            }
            for (int first = 0; first < PLACES; first += 32) {
                int id = OUTSIDE;
                if (first + lane < PLACES) {
                    const int source = a.sources[t * PLACES + first + lane];
                    if (source >= 0) id = a.canvas[image * VALUES + source];
                }
                for (int place = first; place < PLACES && place < first + 32; place++) {
                    const int row = place * (OUTSIDE + 1) + shuffle(id, place - first);
#pragma unroll
                    for (int i = 0; i < D / 32; i++) {
                        const int d = i / 4 * 128 + lane * 4 + i % 4;
                        if (d < CODE) v[0][i] += a.table[row * CODE + d];
                    }
                }
            }
            const float about = float_of(shuffle(bits_of(v[0][0]), 0));
            take(
                v, {n}, {about}, PRE ? vectors0 + AT_NORM1 : nullptr, nullptr,
                RING > 0 ? vectors0 + AT_CONV1 : nullptr, a.ring
            );
        }
    }
};
