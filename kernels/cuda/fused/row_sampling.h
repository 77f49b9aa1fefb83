// Sampling of each row's step: options, values and bits.

struct RowSampler : ResidualStream {
    using ResidualStream::ResidualStream;

    // Load the sampling options and uniforms of a row's step.
    DEVICE RowSample prepare(int n) const {
        const long long index = slot[n], t = step[n];
        RowSample row;
        row.temperature = a.temperature[index], row.top_p = a.top_p[index];
        row.guidance = a.guidance[index], row.twin = a.twin[index];
        row.is_twin = n > 0 && slot[n - 1] >= 0 && a.twin[slot[n - 1]] == index;
        row.known = a.known[index * PIXELS + t / STEPS_PER_PIXEL];
        uniforms(row.uniform, a.seed[index], a.particle[index], t);
        const unsigned char* canvas = a.canvas + index * VALUES + t * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) row.values[c] = row.known ? canvas[c] : FIRST_VALUE;
        row.step = -1;
        return row;
    }

    DEVICE const float* row_parameters(int n) const {
        return (const float*)scratch + n * PARAMETER_STRIDE;
    }

    // Add the bits of a sampled step to its pixel.
    DEVICE void score(const RowSample& row, int n) {
        const long long index = slot[n], position = row.step / STEPS_PER_PIXEL;
        const float nats = row.step < FIRST_STEP ? 0.0f  // the network does not model this step
            : nats_of(row.values, row_parameters(n), lane);
        const float earlier = row.step % STEPS_PER_PIXEL ? pixel_bits[n] : 0.0f;
        const float bits = earlier + nats / 0.6931471805599453f;
        sync_warp();
        if (lane > 0) return;
        pixel_bits[n] = bits;
        a.bits[index * PIXELS + position] = bits;
        if (row.twin >= 0) a.bits[row.twin * (long long)PIXELS + position] = bits;
    }

    // Score the last steps and prepare the next ones. Warps are assigned in reverse order, so that with
    // few rows this runs on warps that have no row to embed.
    DEVICE void score_and_prepare() {
        for (int n = WARPS - 1 - warp; n < row_count; n += WARPS) {
            if (rank == 0 && samples[n].step >= 0) score(samples[n], n);
            RowSample next = {};
            next.step = -1;
            if (unfinished(n)) next = prepare(n);
            sync_warp();  // all lanes have read the old sample
            if (lane == 0) samples[n] = next;
        }
    }

    // Sample the values of each row's step and advance to the next step. Every block of a cluster does so
    // and gets the same values, so that it reads only what it has written itself.
    DEVICE void sample() {
        bool parameters_ready = false;
        for (int n = warp; n < row_count; n += WARPS) {
            if (!unfinished(n)) continue;
            RowSample row = CLUSTER > 1 ? samples[n] : prepare(n);
            if (row.is_twin) continue;
            const long long index = slot[n], t = step[n];
            const float* p = row_parameters(n);
            if (!parameters_ready) wait_barrier(BARRIER_PARAMETERS), parameters_ready = true;
            if (!row.known && t >= FIRST_STEP) {
                // The same rule as in Head.sample (model/heads.py), which names the others.
                if (row.twin >= 0 || row.top_p < 1.0f || row.temperature == 0.0f) {
                    sample_filtered(row.values, p, PARAMETER_STRIDE, row, lane);
                } else {
                    sample_plain(row.values, p, row, lane);
                }
            }
            row.step = t;
            sync_warp();
            if (lane == 0) {
                unsigned char* canvas = a.canvas + index * VALUES + t * CHANNELS;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++) {
                    canvas[c] = (unsigned char)row.values[c];
                    if (row.twin >= 0) {
                        a.canvas[row.twin * (long long)VALUES + t * CHANNELS + c]
                            = (unsigned char)row.values[c];
                    }
                }
                if (CLUSTER > 1) samples[n] = row;
            }
            if (CLUSTER == 1) score(row, n);
        }
        if (!parameters_ready) wait_barrier(BARRIER_PARAMETERS);
        sync_block();
        if (thread < row_count && slot[thread] >= 0) set_step(thread, step[thread] + 1);
        sync_block();
    }
};
