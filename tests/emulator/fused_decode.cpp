#include "intrinsics.h"

#include "../../kernels/cuda/fused/layout.h"
#include "../../kernels/cuda/fused/noise.h"
#include "../../kernels/cuda/fused/distribution.h"
#include "../../kernels/cuda/fused/head_sampling.h"
#include "../../kernels/cuda/fused/residual_stream.h"
#include "../../kernels/cuda/fused/row_sampling.h"
#include "../../kernels/cuda/fused/matmul.h"
#include "../../kernels/cuda/fused/attention.h"
#include "../../kernels/cuda/fused/weights.h"
#include "../../kernels/cuda/fused/decode.cu"

extern "C" void run(const Arguments* a, int clusters) {
    emulate(clusters, CLUSTER, THREADS, SHARED_BYTES, [a] { fused_decode(*a); });
}

// Sample the first step of the network from the given head parameters, [rows, PARAMETER_STRIDE], as
// `fused_decode` does after `run_head`. For clusters of one block.
extern "C" void sample(const Arguments* a, const float* parameters) {
    std::vector<int> slot(a->slots, a->slots + a->rows), step(a->rows, FIRST_STEP), active(a->rows);
    std::vector<float> bits(a->rows);
    emulate(1, CLUSTER, THREADS, SHARED_BYTES, [&] {
        RowSampler rows(*a);
        rows.thread = thread_in_block(), rows.warp = rows.thread / 32, rows.lane = rows.thread % 32;
        rows.rank = 0, rows.first_row = 0, rows.row_count = a->rows;
        rows.slot = slot.data(), rows.step = step.data(), rows.active_slot = active.data();
        rows.pixel_bits = bits.data(), rows.scratch = (u16*)parameters;
        rows.sample();
    });
}
