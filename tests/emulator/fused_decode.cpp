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
