// Residual stream of a block's rows in shared memory: embedding, layer norm and short convolution.

struct ResidualStream {
    const Arguments& a;
    int thread, warp, lane, rank;
    int first_row, row_count;  // rows of the batch that this cluster processes
    float *x, *y;        // the stream, and its next value; the same memory for a cluster of one block
    float* vectors;      // vectors of two layers and the final ones; for one block a layer's biases
    u16 *input, *o;      // input of the next product, and output of attention
    u16* input_low;      // low parts of `input`, with SPLIT_BF16
    u16* scratch;        // q, k and v; hidden features; parameters
    int *slot, *step;    // of each row; slot -1 for none
    int* active_slot;    // slot of a row whose current step the network models, or -1
    float* pixel_bits;   // bits of each row's current pixel
    RowSample* samples;  // of each row, for clusters of several blocks
    u64* mbarriers;      // for data that arrives in this block
    int phases = 0;      // phase bits of the mbarriers, then of the warp's own
    int parity = 0;      // which half of `vectors` belongs to the current layer

    DEVICE explicit ResidualStream(const Arguments& a) : a(a) {}

    // Store words, float32 or numbers rounded to bfloat16 in another block of the cluster, at the address
    // that corresponds to `to`, counted by that block's barrier.
    template <int COUNT>
    DEVICE void store_remote(void* to, int block, const u32 (&x)[COUNT], int barrier) {
        store_async(to, block, x, mbarriers + barrier);
    }

    template <int COUNT>
    DEVICE void store_remote_floats(void* to, int block, const float (&x)[COUNT], int barrier) {
        u32 words[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[i] = bits_of(x[i]);
        store_remote(to, block, words, barrier);
    }

    template <int COUNT>
    DEVICE void store_remote_bf16(void* to, int block, const float (&x)[COUNT], int barrier) {
        u32 words[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        store_remote(to, block, words, barrier);
    }

    // Wait for the current phase of `mbarriers[index]`, whose phase bit is `barrier`.
    DEVICE void wait_barrier_at(int index, int barrier) {
        mbarrier_wait(mbarriers + index, phases >> barrier & 1);
        phases ^= 1 << barrier;
    }

    DEVICE void wait_barrier(int barrier) {
        if (CLUSTER == 1) return;
        wait_barrier_at(barrier, barrier);
        if (thread == 0) expect_arrivals(barrier);
    }

    // Set the number of bytes that the cluster's blocks send in the next phase.
    DEVICE void expect_arrivals(int barrier) {
        const int bytes = barrier == BARRIER_O ? 2 * D : barrier == BARRIER_Y ? 4 * D
            : barrier == BARRIER_HIDDEN ? 2 * FF : 4 * PARAMETER_STRIDE;
        mbarrier_expect(mbarriers + barrier, row_count * bytes);
    }

    // Whether a row has an image with steps left, and whether the network models its current step.
    DEVICE bool unfinished(int n) const { return slot[n] >= 0 && step[n] < STEPS; }

    DEVICE bool is_active(int n) const { return active_slot[n] >= 0; }

    DEVICE void set_step(int n, int next) {
        step[n] = next;
        active_slot[n] = unfinished(n) && next >= FIRST_STEP ? slot[n] : -1;
    }

    DEVICE float* layer_vectors(int half) const { return vectors + half * LAYER_VECTORS; }

    DEVICE const float* final_vectors() const {
        return CLUSTER > 1 ? layer_vectors(2) : a.vectors + LAYERS * LAYER_VECTORS;
    }

    // Start the copy of a layer's vectors to the half that the previous layer no longer needs.
    // `extra_bytes` are copied by the caller with the same barrier.
    DEVICE void copy_vectors(int layer, int extra_bytes = 0) const {
        if (thread > 0) return;
        u64* barrier = mbarriers + BARRIER_VECTORS;
        mbarrier_expect(barrier, 4 * LAYER_VECTORS + extra_bytes);
        copy_bulk(
            layer_vectors(parity), a.vectors + layer * LAYER_VECTORS, 4 * LAYER_VECTORS, barrier
        );
    }

    // Start the copy of a layer's biases, for clusters of one block.
    DEVICE void copy_biases(int layer) const {
        const float* from = a.vectors + layer * LAYER_VECTORS;
        for (int i = 4 * thread; i < VECTOR_NORM1; i += 4 * THREADS) {
            copy_async((uint4*)(vectors + i), (const uint4*)(from + i));
        }
    }

    // Apply layer norm to COUNT rows, whose features are spread over the lanes in groups of 4. Subtracting
    // `shift`, the row's first feature, lets sum and sum of squares be reduced together, instead of one
    // after the other (Chan, Golub and LeVeque, 1983).
    template <int COUNT>
    DEVICE void layer_norm(float (&v)[COUNT][D / 32], const float (&shift)[COUNT], const float* weight) {
        float sums[2 * COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            sums[2 * j] = sums[2 * j + 1] = 0.0f;
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                v[j][i] -= shift[j], sums[2 * j] += v[j][i];
                sums[2 * j + 1] = fma_rn(v[j][i], v[j][i], sums[2 * j + 1]);
            }
        }
        warp_sums(sums);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float mean = sums[2 * j] * (1.0f / D);
            const float variance = fmaxf(fma_rn(-mean, mean, sums[2 * j + 1] * (1.0f / D)), 0.0f);
            const float scale = rsqrtf(variance + NORM_EPS);
#pragma unroll
            for (int i = 0; i < D / 32; i += 4) {
                const int d = i / 4 * 128 + lane * 4;
                const float4 w = *(const float4*)(weight + d), b = *(const float4*)(weight + D + d);
                v[j][i] = fma_rn((v[j][i] - mean) * scale, w.x, b.x);
                v[j][i + 1] = fma_rn((v[j][i + 1] - mean) * scale, w.y, b.y);
                v[j][i + 2] = fma_rn((v[j][i + 2] - mean) * scale, w.z, b.z);
                v[j][i + 3] = fma_rn((v[j][i + 3] - mean) * scale, w.w, b.w);
            }
        }
    }

    // Whether a tap of the short convolution lies in the image at step `t`; its input is `offset` steps old.
    DEVICE static bool has_tap(int tap, int t, int offset) {
        const int column = t % IMAGE_WIDTH;
        return t >= offset && (tap == 3 || (tap == 4 ? column < IMAGE_WIDTH - 1 : column > 0));
    }

    // Replace a row by its short convolution, and store the row in its ring buffer. With few rows, the
    // inputs of all taps are loaded before they are used, so that the loads overlap. With many rows,
    // registers are scarce.
    DEVICE void convolve(float (&v)[D / 32], const float* weight, float* ring, int n) {
        if (!unfinished(n)) return;
        const int t = step[n];
        float* ring_row = ring + (long long)slot[n] * (RING * D);
        constexpr int OFFSETS[5] = {0, 1, IMAGE_WIDTH + 1, IMAGE_WIDTH, IMAGE_WIDTH - 1};
#pragma unroll
        for (int i = 0; i < D / 32; i += 4) {
            const int d = i / 4 * 128 + lane * 4;
            const auto load = [&](int tap) {
                return *(const float4*)(ring_row + (t + RING - OFFSETS[tap]) % RING * D + d);
            };
            float4 inputs[5];
#pragma unroll
            for (int tap = 1; tap < 5; tap++) {
                if (ROWS == 8 && has_tap(tap, t, OFFSETS[tap])) inputs[tap] = load(tap);
            }
            const float4 own = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
            const float4 w0 = *(const float4*)(weight + d);
            v[i] = w0.x * own.x, v[i + 1] = w0.y * own.y;
            v[i + 2] = w0.z * own.z, v[i + 3] = w0.w * own.w;
#pragma unroll
            for (int tap = 1; tap < 5; tap++) {
                if (has_tap(tap, t, OFFSETS[tap])) {
                    const float4 x = ROWS == 8 ? inputs[tap] : load(tap);
                    const float4 w = *(const float4*)(weight + tap * D + d);
                    v[i] = fma_rn(w.x, x.x, v[i]), v[i + 1] = fma_rn(w.y, x.y, v[i + 1]);
                    v[i + 2] = fma_rn(w.z, x.z, v[i + 2]), v[i + 3] = fma_rn(w.w, x.w, v[i + 3]);
                }
            }
            *(float4*)(ring_row + t % RING * D + d) = own;
        }
    }

    // Write rows to the residual stream and, normalised and convolved, to the input of the next product.
    // `norm`, `second_norm` (applied after `norm`) and `conv` may be null. `shift` is each row's first
    // feature.
    template <int COUNT>
    DEVICE void write_rows(
        float (&v)[COUNT][D / 32], const int (&rows)[COUNT], const float (&shift)[COUNT],
        const float* norm, const float* second_norm, const float* conv, float* ring
    ) {
        if (norm && !PRE) layer_norm(v, shift, norm);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            float4* stream = (float4*)(x + rows[j] * STREAM_STRIDE) + lane;
#pragma unroll
            for (int i = 0; i < D / 128; i++) {
                stream[32 * i] = make_float4(v[j][4 * i], v[j][4 * i + 1], v[j][4 * i + 2], v[j][4 * i + 3]);
            }
        }
        if (norm && PRE) layer_norm(v, shift, norm);
        const float zero[COUNT] = {};  // the rows are normalised already
        if (second_norm) layer_norm(v, zero, second_norm);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            if (conv) convolve(v[j], conv, ring, rows[j]);
            uint2* high_part = (uint2*)(input + rows[j] * INPUT_STRIDE) + lane;
            uint2* low_part = (uint2*)(input_low + rows[j] * INPUT_STRIDE) + lane;
#pragma unroll
            for (int i = 0; i < D / 128; i++) {
                const float* x = v[j] + 4 * i;
                const u32 one = pack_bf16(x[0], x[1]), two = pack_bf16(x[2], x[3]);
                high_part[32 * i] = make_uint2(one, two);
                if (SPLIT_BF16) {
                    low_part[32 * i] = make_uint2(
                        pack_bf16(x[0] - low(one), x[1] - high(one)),
                        pack_bf16(x[2] - low(two), x[3] - high(two))
                    );
                }
            }
        }
    }

    // Read the rows at `from`, and write them as `write_rows` does.
    DEVICE void normalise_rows(
        const float* from, const float* norm, const float* second_norm, const float* conv, float* ring
    ) {
        constexpr int COUNT = ROWS > WARPS ? 2 : 1;  // rows at a time, to hide the latency of warp sums
        for (int n = warp; n < row_count; n += COUNT * WARPS) {
            float v[COUNT][D / 32];
            float shift[COUNT];
            int rows[COUNT];
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                rows[j] = n + j * WARPS < row_count ? n + j * WARPS : n;
                shift[j] = from[rows[j] * STREAM_STRIDE];
                const float4* row = (const float4*)(from + rows[j] * STREAM_STRIDE) + lane;
#pragma unroll
                for (int i = 0; i < D / 128; i++) {
                    const float4 four = row[32 * i];
                    v[j][4 * i] = four.x, v[j][4 * i + 1] = four.y;
                    v[j][4 * i + 2] = four.z, v[j][4 * i + 3] = four.w;
                }
            }
            write_rows(v, rows, shift, norm, second_norm, conv, ring);
        }
        if (CLUSTER == 1) wait_copies();  // the biases
        sync_block();
    }

    // Embed each row's step: sum the embeddings of its context values, its position and its label.
    DEVICE void embed() {
        const float* vectors0 = CLUSTER > 1 ? layer_vectors(parity) : a.vectors;
        for (int n = warp; n < row_count; n += WARPS) {
            if (!is_active(n)) continue;
            const long long t = step[n], slot_index = slot[n];
            const int label = CLASSES > 0 ? a.label[slot_index] : 0;
            const float* step_row = a.step_table + t * D + lane * 4;
            const float* label_row = a.label_table + (label < 0 ? CLASSES : label) * D + lane * 4;
            float v[1][D / 32];
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                const int d = i / 4 * 128 + i % 4;
                v[0][i] = step_row[d] + (CLASSES > 0 ? label_row[d] : 0.0f);
            }
            for (int first = 0; first < CONTEXT; first += 32) {
                int id = OUTSIDE;
                if (first + lane < CONTEXT) {
                    const int source = a.context_index[t * CONTEXT + first + lane];
                    if (source >= 0) id = a.canvas[slot_index * VALUES + source];
                }
                for (int j = first; j < CONTEXT && j < first + 32; j++) {
                    const int row = j * (OUTSIDE + 1) + shuffle(id, j - first);
#pragma unroll
                    for (int i = 0; i < D / 32; i++) {
                        const int d = i / 4 * 128 + lane * 4 + i % 4;
                        if (d < EMBEDDING_SIZE) v[0][i] += a.value_table[row * EMBEDDING_SIZE + d];
                    }
                }
            }
            const float shift = float_of(shuffle(bits_of(v[0][0]), 0));
            write_rows(
                v, {n}, {shift}, PRE ? vectors0 + VECTOR_NORM1 : nullptr, nullptr,
                RING > 0 ? vectors0 + VECTOR_CONV1 : nullptr, a.ring
            );
        }
    }
};
