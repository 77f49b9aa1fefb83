#include "emulated.h"

#include "../../kernels/cuda/fused/sizes.h"
#include "../../kernels/cuda/fused/noise.h"
#include "../../kernels/cuda/fused/levels.h"
#include "../../kernels/cuda/fused/draw.h"
#include "../../kernels/cuda/fused/rows.h"
#include "../../kernels/cuda/fused/sampling.h"
#include "../../kernels/cuda/fused/product.h"
#include "../../kernels/cuda/fused/attention.h"
#include "../../kernels/cuda/fused/weights.h"
#include "../../kernels/cuda/fused/layers.cu"

extern "C" void run(const Arguments* a, int clusters) {
    emulate(clusters, CLUSTER, THREADS, SHARED_BYTES, [a] { layers(*a); });
}
