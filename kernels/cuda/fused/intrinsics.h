// Device intrinsics: thread indices, synchronisation, and PTX instructions without a C++ name.
// tests/emulator/intrinsics.h implements the same functions on a CPU. No CUDA header is needed.

typedef unsigned short u16;  // the bits of a bfloat16
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define NOINLINE __device__ __noinline__  // for rare code paths
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)

DEVICE int thread_in_block() { return threadIdx.x; }
DEVICE int block() { return blockIdx.x; }

DEVICE char* shared_memory() {
    extern __shared__ __align__(16) char memory[];
    return memory;
}

DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }

// Split barrier of a cluster: stores before `cluster_arrive` are visible after `cluster_wait`.
DEVICE void cluster_arrive() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

DEVICE void cluster_wait() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

DEVICE u32 address_of(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

#if CLUSTER > 1
DEVICE u32 address_at(const void* shared, int rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address_of(shared)), "r"(rank));
    return address;
}

DEVICE void mbarrier_init(u64* mbarrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address_of(mbarrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Set the number of bytes that complete the current phase.
DEVICE void mbarrier_expect(u64* mbarrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address_of(mbarrier)), "r"(bytes) : "memory");
}

// Return true if the bytes of a phase have arrived; it may wait for them for a limited time.
DEVICE bool mbarrier_try_wait(u64* mbarrier, int phase) {
    u32 done;
    asm volatile(
        "{\n.reg .pred through;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 through, [%1], %2;\n"
        "selp.u32 %0, 1, 0, through;\n}"
        : "=r"(done) : "r"(address_of(mbarrier)), "r"(phase) : "memory"
    );
    return done;
}

// Wait until the bytes of a phase have arrived; phases alternate between 0 and 1. The data arrives in
// this block's own shared memory, and a block reads from device memory only what it has written itself.
// So the scope is the block (cta): a wider scope would invalidate the L1 cache. (In `store_shared_z`, two
// blocks write a z that both have read. The data that they exchange depends on z, so the order holds.)
// If bytes are lost, the kernel fails after 2^26 tries, at least a second, because it would never end.
DEVICE void mbarrier_wait(u64* mbarrier, int phase) {
    for (u32 tries = 0; !mbarrier_try_wait(mbarrier, phase); tries++) {
        if (tries >> 26) __trap();
    }
}

// Start a copy of `bytes` bytes, a multiple of 16, to shared memory, counted by `mbarrier`. One thread
// starts it for all.
DEVICE void copy_bulk(void* to, const void* from, int bytes, u64* mbarrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(address_of(to)), "l"(from), "r"(bytes), "r"(address_of(mbarrier)) : "memory"
    );
}

// Store 1, 2 or 4 words in the shared memory of block `rank` of the cluster, at the address that
// corresponds to `to`, counted by that block's `mbarrier`.
template <int COUNT>
DEVICE void store_async(void* to, int rank, const u32 (&x)[COUNT], u64* mbarrier) {
    const u32 address = address_at(to, rank), barrier = address_at(mbarrier, rank);
    if constexpr (COUNT == 1) {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                     :: "r"(address), "r"(x[0]), "r"(barrier) : "memory");
    } else if constexpr (COUNT == 2) {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
            :: "r"(address), "r"(x[0]), "r"(x[1]), "r"(barrier) : "memory"
        );
    } else {
        static_assert(COUNT == 4, "");
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], "
            "{%1, %2, %3, %4}, [%5];"
            :: "r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(barrier) : "memory"
        );
    }
}
#else
DEVICE void mbarrier_init(u64*) {}
DEVICE void mbarrier_expect(u64*, int) {}
DEVICE void mbarrier_wait(u64*, int) {}
DEVICE void copy_bulk(void*, const void*, int, u64*) {}

template <int COUNT>
DEVICE void store_async(void* to, int, const u32 (&x)[COUNT], u64*) {
    if constexpr (COUNT == 1) *(u32*)to = x[0];
    else if constexpr (COUNT == 2) *(uint2*)to = make_uint2(x[0], x[1]);
    else *(uint4*)to = make_uint4(x[0], x[1], x[2], x[3]);
}
#endif

// Start a copy of 16 bytes to shared memory. The thread sees them after `wait_copies`, the other
// threads of the block after a `sync_block` that follows.
DEVICE void copy_async(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(address_of(to)), "l"(from) : "memory");
}

DEVICE void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE u32 shuffle(u32 x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }

// For weights: read by every block, never written.
DEVICE uint4 load_readonly(const uint4* p) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
}

// For attention states: read once per step, so they should not evict other data from the cache.
DEVICE float4 load_streaming(const float4* p) { return __ldcs(p); }
DEVICE float load_streaming(const float* p) { return __ldcs(p); }
DEVICE void store_streaming(float4* p, float4 x) { __stcs(p, x); }
DEVICE void store_streaming(float* p, float x) { __stcs(p, x); }

// Load four 8 x 8 matrices of bfloat16. Lanes 8 i ... 8 i + 7 pass the rows of matrix i.
DEVICE void load_matrices(u32 (&r)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address_of(row)) : "memory");
}

// d += a b for 16 x 16 and 16 x 8 bfloat16 matrices, in float32.
DEVICE void multiply_add(float (&d)[4], uint4 a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Prefetch a cache line to L2.
DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

// Hide a value from the optimiser, so that it recomputes derived values instead of keeping them in
// registers over a loop.
DEVICE void opaque(int& x) { asm volatile("" : "+r"(x)); }

DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE u64 mul_hi(u64 x, u64 y) { return __umul64hi(x, y); }
DEVICE float float_of(u32 x) { return __uint_as_float(x); }
DEVICE float reciprocal(float x) { return __fdividef(1.0f, x); }
DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Pack two numbers as bfloat16, the first in the lower half, rounded to nearest even.
DEVICE u32 pack_bf16(float low, float high) {
    u32 x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
