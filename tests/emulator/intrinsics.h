// What kernels/cuda/fused/intrinsics.h gives, on a CPU: each thread of a cluster is a coroutine, and
// those that meet wait for each other. One cluster runs at a time.

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
#define APART static
#define KERNEL(threads) static void

struct Meeting {
    int size, there = 0;
    unsigned turn = 0;
};

struct Warp {
    Meeting meeting{32};
    u32 posted[32][6];
};

struct Place {  // a block's
    std::vector<char> memory;
    Meeting meeting;
    std::vector<Warp> warps;
};

struct Thread {
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    int block, thread;
    bool begun = false, through = false;
    unsigned arrived = 0;
};

static std::vector<Place> places;  // of one cluster
static std::vector<Thread> threads;
static Meeting cluster;
static Thread* me;
static jmp_buf scheduler;
static int first_block;

// By jumps: swapcontext would ask the system for the signal mask, which takes most of the time.
__attribute__((noinline)) static void yield() {
    if (!_setjmp(me->place)) _longjmp(scheduler, 1);
}

inline void meet(Meeting& of) {
    const unsigned turn = of.turn;
    if (++of.there == of.size) {
        of.there = 0, of.turn++;
    } else {
        while (of.turn == turn) yield();
    }
}

inline Place& here() { return places[me->block]; }
inline Warp& warp() { return here().warps[me->thread / 32]; }

inline int thread_in_block() { return me->thread; }
inline int block() { return first_block + me->block; }
inline char* shared_memory() { return here().memory.data(); }
inline void sync_warp() { meet(warp().meeting); }
inline void sync_block() { meet(here().meeting); }

inline void cluster_arrive() {
    if (CLUSTER == 1) return;
    me->arrived = cluster.turn;
    if (++cluster.there == cluster.size) cluster.there = 0, cluster.turn++;
}

inline void cluster_wait() {
    if (CLUSTER == 1) return;
    while (cluster.turn == me->arrived) yield();
}

struct Count {  // in the place of an mbarrier
    int missing;
    short time, told;
};
static_assert(sizeof(Count) == 8);

inline char* there(void* to, int rank) {
    return places[rank].memory.data() + ((char*)to - here().memory.data());
}

inline void count(Count& of, int bytes, bool told) {
    of.missing += bytes;
    of.told |= told;
    if (of.told && of.missing == 0) of.told = 0, of.time ^= 1;
}

struct Copy {
    void* to;
    const void* from;
    int bytes;
    Count* counted;
};
static std::vector<Copy> copies;

inline void mbarrier_init(u64* mbarrier) { *(Count*)mbarrier = {0, 0, 0}; }
inline void mbarrier_expect(u64* mbarrier, int bytes) { count(*(Count*)mbarrier, bytes, true); }

inline void mbarrier_wait(u64* mbarrier, int time) {
    while (((volatile Count*)mbarrier)->time == time) yield();
}

template <int COUNT>
void store_async(void* to, int rank, const u32 (&x)[COUNT], u64* mbarrier) {
    char* at = there(to, rank);
    if ((std::uintptr_t)at % sizeof x) std::abort();  // as a device would
    std::memcpy(at, x, sizeof x);
    if (CLUSTER > 1) count(*(Count*)there(mbarrier, rank), -(int)sizeof x, false);
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
    w.posted[me->thread % 32][0] = bits_of(x);
    meet(w.meeting);
    const float other = float_of(w.posted[me->thread % 32 ^ mask][0]);
    meet(w.meeting);
    return other;
}

inline u32 shuffle(u32 x, int lane) {
    Warp& w = warp();
    w.posted[me->thread % 32][0] = x;
    meet(w.meeting);
    const u32 other = w.posted[lane][0];
    meet(w.meeting);
    return other;
}

inline void copy_async(uint4* to, const uint4* from) { *to = *from; }
inline void wait_copies() {}

// What is on its way comes at any time: until then nothing can be said of what it will replace.
inline void copy_bulk(void* to, const void* from, int bytes, u64* mbarrier) {
    if (((std::uintptr_t)to | (std::uintptr_t)from | bytes) % 16) std::abort();  // as a device would
    std::memset(to, 0xff, bytes);
    copies.push_back({to, from, bytes, (Count*)mbarrier});
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
    const int lane = me->thread % 32;
    std::memcpy(w.posted[lane], row, 16);
    meet(w.meeting);
    for (int i = 0; i < 4; i++) r[i] = w.posted[8 * i + lane / 4][lane % 4];
    meet(w.meeting);
}

inline float number(u32 pair, int i) { return float_of(i ? pair & 0xffff0000u : pair << 16); }

inline void multiply_add(float (&d)[4], uint4 a, u32 b0, u32 b1) {
    Warp& w = warp();
    const int lane = me->thread % 32, g = lane / 4, t = lane % 4;
    const u32 mine[6] = {a.x, a.y, a.z, a.w, b0, b1};
    std::memcpy(w.posted[lane], mine, sizeof mine);
    meet(w.meeting);
    for (int i = 0; i < 4; i++) {
        const int n = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const int of = k % 8 / 2;
            const float x = number(w.posted[4 * g + of][i / 2 + k / 8 * 2], k % 2);
            d[i] += x * number(w.posted[4 * n + of][4 + k / 8], k % 2);
        }
    }
    meet(w.meeting);
}

inline u32 rounded(float x) {
    const u32 bits = bits_of(x);
    return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline u32 pack_bf16(float low, float high) { return rounded(high) << 16 | rounded(low); }

constexpr int MOST_ROUNDS = 100'000;

// Go on with a thread, or begin it on a stack of its own.
template <class Run>
[[noreturn]] void resume(Thread& t, Run& run) {
    static Run* running;
    if (t.begun) _longjmp(t.place, 1);
    t.begun = true, running = &run;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = t.stack.get();
    context.uc_stack.ss_size = 1 << 16;
    makecontext(&context, (void (*)())+[] {
        (*running)();
        me->through = true;
        _longjmp(scheduler, 1);
    }, 0);
    setcontext(&context);
    std::abort();
}

// Run clusters of `run()`, one after another.
template <class Run>
void emulate(int clusters, int size, int each, std::size_t bytes, Run run) {
    for (int c = 0; c < clusters; c++) {
        first_block = c * size;
        cluster = {size * each};
        places.clear();
        for (int b = 0; b < size; b++) {
            places.push_back({std::vector<char>(bytes, char(0xff)), {each}, {}});
            places.back().warps.resize(each / 32);
        }
        threads = std::vector<Thread>(size * each);
        for (int i = 0; i < size * each; i++) {
            Thread& t = threads[i];
            t.block = i / each, t.thread = i % each;
            t.stack = std::make_unique<char[]>(1 << 16);
        }
        // Half of the warps, others each time, go on for a while: far ahead of those that they do not
        // wait for.
        std::minstd_rand random(size * each);
        std::vector<char> asleep(size * each / 32);
        for (int round = 0, any = 1; any; round++) {
            if (round == MOST_ROUNDS) std::abort();  // some wait for what does not come
            any = 0;
            std::erase_if(copies, [&](const Copy& x) {
                if (random() / 2 % 4) return false;
                std::memcpy(x.to, x.from, x.bytes);
                count(*x.counted, -x.bytes, false);
                return true;
            });
            for (char& warp : asleep) warp = round % 8 ? warp : random() / 2 % 2;
            for (Thread& t : threads) {
                if (t.through) continue;
                any = 1;
                if (asleep[(t.block * each + t.thread) / 32]) continue;
                me = &t;
                if (!_setjmp(scheduler)) resume<Run>(t, run);
            }
        }
        if (!copies.empty()) std::abort();  // into memory that others have by then
    }
}
