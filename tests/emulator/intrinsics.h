// CPU implementation of kernels/cuda/fused/intrinsics.h. Each thread of a cluster is a coroutine, which
// yields while it waits. One cluster runs at a time.

#include <setjmp.h>
#include <ucontext.h>

#include <math.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct float2 { float x, y; };
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define DEVICE inline
#define NOINLINE static
#define KERNEL(threads) static void

struct Barrier {
    int size, arrived = 0;
    unsigned generation = 0;
};

struct Warp {
    Barrier barrier{32};
    u32 exchange[32][6];  // values that lanes pass to each other
};

struct Block {
    std::vector<char> memory;  // shared memory
    Barrier barrier;
    std::vector<Warp> warps;
};

struct Thread {
    jmp_buf context;
    std::unique_ptr<char[]> stack;
    int block, thread;
    bool started = false, finished = false;
    unsigned cluster_generation = 0;  // of the cluster barrier at `cluster_arrive`
};

static std::vector<Block> blocks;  // of the running cluster
static std::vector<Thread> threads;
static Barrier cluster;
static Thread* current;
static jmp_buf scheduler;
static int first_block;

// Switch by longjmp, because swapcontext saves the signal mask with a system call, which would take
// most of the time.
__attribute__((noinline)) static void yield() {
    if (!_setjmp(current->context)) _longjmp(scheduler, 1);
}

inline void wait_for_all(Barrier& barrier) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0, barrier.generation++;
    } else {
        while (barrier.generation == generation) yield();
    }
}

inline Block& this_block() { return blocks[current->block]; }
inline Warp& warp() { return this_block().warps[current->thread / 32]; }

inline int thread_in_block() { return current->thread; }
inline int block() { return first_block + current->block; }
inline char* shared_memory() { return this_block().memory.data(); }
inline void sync_warp() { wait_for_all(warp().barrier); }
inline void sync_block() { wait_for_all(this_block().barrier); }

inline void cluster_arrive() {
    if (CLUSTER == 1) return;
    current->cluster_generation = cluster.generation;
    if (++cluster.arrived == cluster.size) cluster.arrived = 0, cluster.generation++;
}

inline void cluster_wait() {
    if (CLUSTER == 1) return;
    while (cluster.generation == current->cluster_generation) yield();
}

struct Mbarrier {
    int missing_bytes;
    short phase, expected;
};
static_assert(sizeof(Mbarrier) == 8);

// Address in block `rank` that corresponds to `to` in this block.
inline char* address_at(void* to, int rank) {
    return blocks[rank].memory.data() + ((char*)to - this_block().memory.data());
}

inline void count(Mbarrier& barrier, int bytes, bool expected) {
    barrier.missing_bytes += bytes;
    barrier.expected |= expected;
    if (barrier.expected && barrier.missing_bytes == 0) barrier.expected = 0, barrier.phase ^= 1;
}

struct Copy {
    void* to;
    const void* from;
    int bytes;
    Mbarrier* barrier;
};
static std::vector<Copy> copies;

inline void mbarrier_init(u64* mbarrier) { *(Mbarrier*)mbarrier = {0, 0, 0}; }
inline void mbarrier_expect(u64* mbarrier, int bytes) { count(*(Mbarrier*)mbarrier, bytes, true); }

inline void mbarrier_wait(u64* mbarrier, int phase) {
    while (((volatile Mbarrier*)mbarrier)->phase == phase) yield();
}

template <int COUNT>
void store_async(void* to, int rank, const u32 (&x)[COUNT], u64* mbarrier) {
    char* at = address_at(to, rank);
    if ((std::uintptr_t)at % sizeof x) std::abort();  // a device would fail too
    std::memcpy(at, x, sizeof x);
    if (CLUSTER > 1) count(*(Mbarrier*)address_at(mbarrier, rank), -(int)sizeof x, false);
}

inline u32 bits_of(float x) { return std::bit_cast<u32>(x); }
inline float float_of(u32 x) { return std::bit_cast<float>(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline u64 mul_hi(u64 x, u64 y) {
    __extension__ typedef unsigned __int128 wide;
    return (wide)x * y >> 64;
}
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }

inline float shuffle_xor(float x, int mask) {
    Warp& w = warp();
    w.exchange[current->thread % 32][0] = bits_of(x);
    wait_for_all(w.barrier);
    const float other = float_of(w.exchange[current->thread % 32 ^ mask][0]);
    wait_for_all(w.barrier);
    return other;
}

inline u32 shuffle(u32 x, int lane) {
    Warp& w = warp();
    w.exchange[current->thread % 32][0] = x;
    wait_for_all(w.barrier);
    const u32 other = w.exchange[lane][0];
    wait_for_all(w.barrier);
    return other;
}

inline void copy_async(uint4* to, const uint4* from) { *to = *from; }
inline void wait_copies() {}

// Fill the target with NaN. The scheduler completes the copy at a random later time.
inline void copy_bulk(void* to, const void* from, int bytes, u64* mbarrier) {
    if (((std::uintptr_t)to | (std::uintptr_t)from | bytes) % 16) std::abort();  // a device would fail too
    std::memset(to, 0xff, bytes);
    copies.push_back({to, from, bytes, (Mbarrier*)mbarrier});
}

inline uint4 load_readonly(const uint4* p) { return *p; }
inline float4 load_streaming(const float4* p) { return *p; }
inline void prefetch_l2(const void*) {}
inline void opaque(int&) {}
inline float load_streaming(const float* p) { return *p; }
inline void store_streaming(float4* p, float4 x) { *p = x; }
inline void store_streaming(float* p, float x) { *p = x; }

inline void load_matrices(u32 (&r)[4], const u16* row) {
    Warp& w = warp();
    const int lane = current->thread % 32;
    std::memcpy(w.exchange[lane], row, 16);
    wait_for_all(w.barrier);
    for (int i = 0; i < 4; i++) r[i] = w.exchange[8 * i + lane / 4][lane % 4];
    wait_for_all(w.barrier);
}

inline float bf16_at(u32 pair, int i) { return float_of(i ? pair & 0xffff0000u : pair << 16); }

inline void multiply_add(float (&d)[4], uint4 a, u32 b0, u32 b1) {
    Warp& w = warp();
    const int lane = current->thread % 32, g = lane / 4, t = lane % 4;
    const u32 operands[6] = {a.x, a.y, a.z, a.w, b0, b1};
    std::memcpy(w.exchange[lane], operands, sizeof operands);
    wait_for_all(w.barrier);
    for (int i = 0; i < 4; i++) {
        const int n = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const int source = k % 8 / 2;
            const float x = bf16_at(w.exchange[4 * g + source][i / 2 + k / 8 * 2], k % 2);
            d[i] += x * bf16_at(w.exchange[4 * n + source][4 + k / 8], k % 2);
        }
    }
    wait_for_all(w.barrier);
}

inline u32 round_bf16(float x) {
    const u32 bits = bits_of(x);
    return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline u32 pack_bf16(float low, float high) { return round_bf16(high) << 16 | round_bf16(low); }

constexpr int MAX_ROUNDS = 100'000;

// Resume a thread, or start it on its own stack.
template <class Run>
[[noreturn]] void resume(Thread& t, Run& run) {
    static Run* running;
    if (t.started) _longjmp(t.context, 1);
    t.started = true, running = &run;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = t.stack.get();
    context.uc_stack.ss_size = 1 << 16;
    makecontext(&context, (void (*)())+[] {
        (*running)();
        current->finished = true;
        _longjmp(scheduler, 1);
    }, 0);
    setcontext(&context);
    std::abort();
}

// Run `clusters` clusters of `size` blocks of `threads_per_block` threads, one after another. Each thread
// calls `run()`; a block has `bytes` bytes of shared memory.
template <class Run>
void emulate(int clusters, int size, int threads_per_block, std::size_t bytes, Run run) {
    for (int c = 0; c < clusters; c++) {
        first_block = c * size;
        cluster = {size * threads_per_block};
        blocks.clear();
        for (int b = 0; b < size; b++) {
            blocks.push_back({std::vector<char>(bytes, char(0xff)), {threads_per_block}, {}});
            blocks.back().warps.resize(threads_per_block / 32);
        }
        threads = std::vector<Thread>(size * threads_per_block);
        for (int i = 0; i < size * threads_per_block; i++) {
            Thread& t = threads[i];
            t.block = i / threads_per_block, t.thread = i % threads_per_block;
            t.stack = std::make_unique<char[]>(1 << 16);
        }
        // A random half of the warps runs for 8 rounds while the others sleep, so that warps get far
        // ahead of those that they do not wait for.
        std::minstd_rand random(size * threads_per_block);
        std::vector<char> sleeping(size * threads_per_block / 32);
        for (int round = 0, unfinished = 1; unfinished; round++) {
            if (round == MAX_ROUNDS) std::abort();  // a deadlock
            unfinished = 0;
            std::erase_if(copies, [&](const Copy& x) {
                if (random() / 2 % 4) return false;
                std::memcpy(x.to, x.from, x.bytes);
                count(*x.barrier, -x.bytes, false);
                return true;
            });
            for (char& warp : sleeping) warp = round % 8 ? warp : random() / 2 % 2;
            for (Thread& t : threads) {
                if (t.finished) continue;
                unfinished = 1;
                if (sleeping[(t.block * threads_per_block + t.thread) / 32]) continue;
                current = &t;
                if (!_setjmp(scheduler)) resume<Run>(t, run);
            }
        }
        if (!copies.empty()) std::abort();  // a kernel must wait for its copies
    }
}
