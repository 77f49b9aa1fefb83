// What training runs over whole batches beside matrix products, behind a plain C ABI: see
// kernels/native/training/passes.py. Work is shared out by image and head, and sums are made in one
// order, so results do not depend on the number of threads.

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// gcc orders Arm's instructions before it gives them registers, and spills sums for it.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <algorithm>
#include <new>

#include "../threads.h"
#include "attention.h"
#include "mixture.h"
#include "short_conv.h"

#define SCANLINE_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace scanline;

// Call `work(i)` for each i below `count`, whichever thread is free.
template <typename Work>
void share_out(Pool& pool, int64_t count, const Work& work) {
    std::atomic<int64_t> next{0};
    const auto threads = std::clamp(count, int64_t{1}, static_cast<int64_t>(pool.threads()));
    pool.run(static_cast<int>(threads), [&](int) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    });
}

// Call `work` with the number of vectors in a head; false where no pass has been made for it.
template <typename Work>
bool with_vectors(int64_t head_size, const Work& work) {
    switch (head_size % LANES ? 0 : head_size / LANES) {
        case 1: return work(std::integral_constant<int, 1>{}), true;
        case 2: return work(std::integral_constant<int, 2>{}), true;
        case 4: return work(std::integral_constant<int, 4>{}), true;
        case 8: return work(std::integral_constant<int, 8>{}), true;
        default: return false;
    }
}

template <typename T>
bool attend(Pool& pool, const AttentionSizes& sizes, const void* q, const void* k, const void* v,
            float* kv, float* z, void* o, float* denominators) {
    return with_vectors(sizes.head_size, [&](auto n) {
        share_out(pool, sizes.images * sizes.heads, [&](int64_t i) {
            HeadPass<n, T>(sizes, i / sizes.heads, i % sizes.heads)
                .forward(static_cast<const T*>(q), static_cast<const T*>(k),
                         static_cast<const T*>(v), kv, z, static_cast<T*>(o), denominators);
        });
    });
}

template <typename T>
bool attend_back(Pool& pool, const AttentionSizes& sizes, const void* q, const void* k,
                 const void* v, const float* denominators, const void* grad_o, const float* kv,
                 const float* z, float* grad_kv, float* grad_z, void* grad_q, void* grad_k,
                 void* grad_v) {
    return with_vectors(sizes.head_size, [&](auto n) {
        share_out(pool, sizes.images * sizes.heads, [&](int64_t i) {
            Buffer<float> scratch(static_cast<size_t>(sizes.positions));
            HeadPass<n, T>(sizes, i / sizes.heads, i % sizes.heads)
                .backward(static_cast<const T*>(q), static_cast<const T*>(k),
                          static_cast<const T*>(v), denominators, static_cast<const T*>(grad_o),
                          kv, z, grad_kv, grad_z, static_cast<T*>(grad_q),
                          static_cast<T*>(grad_k), static_cast<T*>(grad_v), scratch.get());
        });
    });
}

}  // namespace

SCANLINE_API void* training_open(int threads) {
    try {
        return new Pool(threads);
    } catch (...) {  // no exception may leave C
        return nullptr;
    }
}

SCANLINE_API void training_close(void* pool) { delete static_cast<Pool*>(pool); }

SCANLINE_API int training_lanes() { return LANES; }

// `bf16` says what the tensors behind void* hold; the rest are floats. 0 where it was done.
SCANLINE_API int attention_forward(void* pool, const AttentionSizes* sizes, int bf16,
                                   const void* q, const void* k, const void* v, float* kv, float* z,
                                   void* o, float* denominators) {
    const auto run = bf16 ? attend<uint16_t> : attend<float>;
    return !run(*static_cast<Pool*>(pool), *sizes, q, k, v, kv, z, o, denominators);
}

SCANLINE_API int attention_backward(void* pool, const AttentionSizes* sizes, int bf16,
                                    const void* q, const void* k, const void* v,
                                    const float* denominators, const void* grad_o, const float* kv,
                                    const float* z, float* grad_kv, float* grad_z, void* grad_q,
                                    void* grad_k, void* grad_v) {
    try {
        const auto run = bf16 ? attend_back<uint16_t> : attend_back<float>;
        return !run(*static_cast<Pool*>(pool), *sizes, q, k, v, denominators, grad_o, kv, z,
                    grad_kv, grad_z, grad_q, grad_k, grad_v);
    } catch (...) {
        return 2;
    }
}

SCANLINE_API void short_conv_forward(void* pool, const ConvSizes* sizes, const float* x,
                                     const float* weight, float* y) {
    share_out(*static_cast<Pool*>(pool), sizes->images,
              [&](int64_t i) { ConvPass(*sizes, i).forward(x, weight, y); });
}

// `grad_weight: [B, 5, D]`, zeroed: an image's own each, summed by the caller.
SCANLINE_API void short_conv_backward(void* pool, const ConvSizes* sizes, const float* grad,
                                      const float* x, const float* weight, float* grad_x,
                                      float* grad_weight) {
    share_out(*static_cast<Pool*>(pool), sizes->images, [&](int64_t i) {
        ConvPass(*sizes, i).backward(grad, x, weight, grad_x,
                                     grad_weight + i * TAPS * sizes->features);
    });
}

// `parameters, gradient: [P, size]`, `values: [P, channels]`, `nats: [P]`.
SCANLINE_API void mixture_nats(void* pool, int64_t pixels, int channels, int64_t size,
                               const float* parameters, const uint8_t* values, float* nats,
                               float* gradient) {
    constexpr int64_t PIECE = 64;
    share_out(*static_cast<Pool*>(pool), (pixels + PIECE - 1) / PIECE, [&](int64_t piece) {
        const int64_t last = std::min(pixels, (piece + 1) * PIECE);
        for (int64_t i = piece * PIECE; i < last; ++i)
            nats[i] = scanline::mixture_nats(parameters + i * size, values + i * channels, channels,
                                             gradient + i * size);
    });
}
