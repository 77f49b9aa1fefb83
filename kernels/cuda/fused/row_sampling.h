// What is asked of each row's step, what it decides, and what that costs.

struct Sampling : Rows {
    using Rows::Rows;

    // Look up what is asked of a row's step.
    DEVICE Row ask(int n) const {
        const long long image = slot[n], t = step[n];
        Row row;
        row.temperature = a.temperature[image], row.top_p = a.top_p[image];
        row.guidance = a.guidance[image], row.twin = a.twin[image];
        row.follows = n > 0 && slot[n - 1] >= 0 && a.twin[slot[n - 1]] == image;
        row.known = a.known[image * PIXELS + t / PARTS];
        uniforms(row.uniform, a.seed[image], a.particle[image], t);
        const unsigned char* canvas = a.canvas + image * VALUES + t * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) row.values[c] = row.known ? canvas[c] : FIRST_VALUE;
        row.step = -1;
        return row;
    }

    DEVICE const float* parameters_of(int n) const {
        return (const float*)middle + n * PARAMETERS_ROW;
    }

    // Add up the bits of a pixel's steps, this one being decided.
    DEVICE void weigh(const Row& row, int n) {
        const long long image = slot[n], position = row.step / PARTS;
        const float nats = row.step < FIRST ? 0.0f  // the network does not model this value
            : cost(row.values, parameters_of(n), a.tables, lane);
        const float bits = (row.step % PARTS ? spent[n] : 0.0f) + nats / 0.6931471805599453f;
        sync_warp();
        if (lane > 0) return;
        spent[n] = bits;
        a.bits[image * PIXELS + position] = bits;
        if (row.twin >= 0) a.bits[row.twin * (long long)PIXELS + position] = bits;
    }

    // Weigh the steps that were decided last, and look up what is asked of the next: warps do so that
    // have no row of their own to embed, where rows are few.
    DEVICE void weigh_and_ask() {
        for (int n = WARPS - 1 - warp; n < live; n += WARPS) {
            if (rank == 0 && asked[n].step >= 0) weigh(asked[n], n);
            Row next = {};
            next.step = -1;
            if (alive(n)) next = ask(n);
            sync_warp();  // all lanes have read what was asked before
            if (lane == 0) asked[n] = next;
        }
    }

    // Decide the values of each row's step, and go on to the next. Every block does so, to the same
    // values: each reads what it has written itself.
    DEVICE void sample() {
        bool waited = false;
        for (int n = warp; n < live; n += WARPS) {
            if (!alive(n)) continue;
            Row row = CLUSTER > 1 ? asked[n] : ask(n);
            if (row.follows) continue;
            const long long image = slot[n], t = step[n];
            const float* p = parameters_of(n);
            if (!waited) await(BARRIER_PARAMETERS), waited = true;
            if (!row.known && t >= FIRST) {
                if (row.twin >= 0 || row.top_p < 1.0f || row.temperature == 0.0f) {
                    shape(row.values, p, PARAMETERS_ROW, a.tables, row, lane);
                } else {
                    draw(row.values, p, a.tables, row, lane);
                }
            }
            row.step = t;
            sync_warp();
            if (lane == 0) {
                unsigned char* canvas = a.canvas + image * VALUES + t * CHANNELS;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++) {
                    canvas[c] = (unsigned char)row.values[c];
                    if (row.twin >= 0) {
                        a.canvas[row.twin * (long long)VALUES + t * CHANNELS + c]
                            = (unsigned char)row.values[c];
                    }
                }
                if (CLUSTER > 1) asked[n] = row;
            }
            if (CLUSTER == 1) weigh(row, n);
        }
        if (!waited) await(BARRIER_PARAMETERS);
        sync_block();
        if (thread < live && slot[thread] >= 0) arrive_at(thread, step[thread] + 1);
        sync_block();
    }
};
