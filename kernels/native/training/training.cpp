// C ABI of the operations that training runs over whole batches besides matrix products; called by
// kernels/native/training/library.py. Work is divided by image, head or block, and sums are made in a
// fixed order, so results do not depend on the number of threads.
//
// `bf16` selects the element type behind void*: bfloat16, otherwise float32. Functions return 0 on
// success and 1 if memory was short, in which case nothing was computed.

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// gcc schedules Arm instructions before register allocation, which makes it spill sums.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <algorithm>
#include <new>

#include "../buffer.h"
#include "../float_mode.h"
#include "../thread_pool.h"
#include "activation.h"
#include "attention.h"
#include "residual.h"

#define SCANLINE_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace scanline;

// Call `work(i, thread)` for each i < count on the threads of the pool.
template <typename Work>
void parallel_for(void* pool, int64_t count, const Work& work) {
    const DefaultFloatMode mode;  // also for the caller's own part of the work
    auto& threads = *static_cast<ThreadPool*>(pool);
    std::atomic<int64_t> next{0};
    const auto used = std::clamp(count, int64_t{1}, static_cast<int64_t>(threads.size()));
    threads.run(static_cast<int>(used), [&](int thread) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i, thread);
    });
}

// Call `work(i, first, count)` for each block i of `block` out of `total` elements.
template <typename Work>
void parallel_for_blocks(void* pool, int64_t total, int64_t block, const Work& work) {
    parallel_for(pool, (total + block - 1) / block, [&](int64_t i, int) {
        work(i, i * block, std::min(block, total - i * block));
    });
}

// Scratch memory of each thread. Allocated before the work begins, because threads cannot report
// failures.
class Scratch {
public:
    Scratch(void* pool, int64_t floats)
        : each_((static_cast<size_t>(floats) + 15) / 16 * 16),
          memory_(each_ * static_cast<size_t>(static_cast<ThreadPool*>(pool)->size())) {}
    float* of(int thread) { return memory_.get() + each_ * static_cast<size_t>(thread); }

private:
    size_t each_;
    Buffer<float> memory_;
};

// Call `work` with a value of the element type.
template <typename Work>
int dispatch_dtype(int bf16, const Work& work) {
    try {
        if (bf16) work(uint16_t{});
        else work(float{});
        return 0;
    } catch (...) {  // no exception may cross the C ABI
        return 1;
    }
}

// Call `work` with a value of the element type and the number of vectors in a head.
template <typename Work>
int dispatch_head_size(int bf16, int64_t head_size, const Work& work) {
    return dispatch_dtype(bf16, [&](auto element) {
        switch (head_size / LANES) {  // `supports_attention` admits only these
            case 1: return work(element, std::integral_constant<int, 1>{});
            case 2: return work(element, std::integral_constant<int, 2>{});
            case 4: return work(element, std::integral_constant<int, 4>{});
            case 8: return work(element, std::integral_constant<int, 8>{});
        }
    });
}

// Call `work` with each group of an image's heads. A group has several heads, or one if there are fewer
// images than threads.
template <int N, typename T, typename Work>
void for_each_head_group(void* pool, const AttentionSizes& sizes, const AttentionArrays<T>& arrays,
                         const Work& work) {
    using Group = HeadGroup<N, T>;
    const bool few = sizes.images < static_cast<ThreadPool*>(pool)->size();
    const int64_t group_size = few ? 1 : std::min<int64_t>(sizes.heads, Group::MAX_HEADS);
    const int64_t groups = (sizes.heads + group_size - 1) / group_size;
    Scratch scratch(pool, group_size * HeadAttention<N, T>::scratch(sizes));
    parallel_for(pool, sizes.images * groups, [&](int64_t i, int thread) {
        const int64_t first = i % groups * group_size;
        Group heads(sizes, arrays, i / groups, first, std::min(group_size, sizes.heads - first),
                    scratch.of(thread));
        work(heads);
    });
}

}  // namespace

SCANLINE_API void* training_open(int threads) {
    try {
        return new ThreadPool(threads);
    } catch (...) {
        return nullptr;
    }
}

SCANLINE_API void training_close(void* pool) { delete static_cast<ThreadPool*>(pool); }

SCANLINE_API int training_lanes() { return LANES; }

SCANLINE_API int attention_forward(void* pool, const AttentionSizes* sizes, int bf16,
                                   const void* qkv, const float* bias, void* o,
                                   float* denominators) {
    return dispatch_head_size(bf16, sizes->head_size, [&](auto element, auto n) {
        using T = decltype(element);
        AttentionArrays<T> arrays{static_cast<const T*>(qkv), bias, denominators};
        arrays.o = static_cast<T*>(o);
        for_each_head_group<n>(pool, *sizes, arrays, [](auto& heads) { heads.forward(); });
    });
}

SCANLINE_API int attention_backward(void* pool, const AttentionSizes* sizes, int bf16,
                                    const void* qkv, const float* bias, float* denominators,
                                    const void* grad_o, void* grad, float* grad_bias) {
    return dispatch_head_size(bf16, sizes->head_size, [&](auto element, auto n) {
        using T = decltype(element);
        AttentionArrays<T> arrays{static_cast<const T*>(qkv), bias, denominators};
        arrays.grad_o = static_cast<const T*>(grad_o);
        arrays.grad = static_cast<T*>(grad), arrays.grad_bias = grad_bias;
        for_each_head_group<n>(pool, *sizes, arrays, [](auto& heads) { heads.backward(); });
    });
}

// Null pointers: `added`, `bias` and `grad_added` if nothing is added; `grad_added` also if elements
// are float32, because it would equal `grad`; `grad_sum` if it is 0; `conv_weight` without a
// convolution.
SCANLINE_API int residual_forward(void* pool, const ResidualSizes* sizes, int bf16, const float* x,
                                  const void* added, const float* bias,
                                  const float* norm_weight, const float* norm_bias,
                                  const float* conv_weight, float* sum, void* y) {
    return dispatch_dtype(bf16, [&](auto element) {
        using T = decltype(element);
        Scratch scratch(pool, ResidualPass<T>::scratch_forward(*sizes));
        // Split images into parts if there are fewer images than threads.
        const int64_t threads = static_cast<ThreadPool*>(pool)->size();
        const int64_t rows = ResidualPass<T>::rows_of(*sizes);
        const int64_t parts = std::min(rows, (threads + sizes->images - 1) / sizes->images);
        parallel_for(pool, sizes->images * parts, [&](int64_t i, int thread) {
            const int64_t part = i % parts;
            ResidualPass<T>(*sizes, i / parts)
                .forward(rows * part / parts, rows * (part + 1) / parts, x,
                         static_cast<const T*>(added), bias, norm_weight, norm_bias, conv_weight,
                         sum, static_cast<T*>(y), scratch.of(thread));
        });
    });
}

// `parameter_grads: [B, 8, D]` per image: zeroed and then summed by the caller.
SCANLINE_API int residual_backward(void* pool, const ResidualSizes* sizes, int bf16,
                                   const float* grad_sum, const void* grad_y, const float* sum,
                                   const float* norm_weight, const float* norm_bias,
                                   const float* conv_weight, float* grad, void* grad_added,
                                   float* parameter_grads) {
    return dispatch_dtype(bf16, [&](auto element) {
        using T = decltype(element);
        Scratch scratch(pool, ResidualPass<T>::scratch_backward(*sizes));
        parallel_for(pool, sizes->images, [&](int64_t i, int thread) {
            ResidualPass<T>(*sizes, i).backward(
                grad_sum, static_cast<const T*>(grad_y), sum, norm_weight, norm_bias, conv_weight,
                grad, static_cast<T*>(grad_added), parameter_grads + i * PARAMETERS * sizes->features,
                scratch.of(thread));
        });
    });
}

// `x, y: [rows, features]`, in blocks of `block` rows.
SCANLINE_API int bias_gelu_forward(void* pool, int64_t rows, int64_t features, int64_t block,
                                   int bf16, const void* x, const float* bias, void* y) {
    return dispatch_dtype(bf16, [&](auto element) {
        using T = decltype(element);
        parallel_for_blocks(pool, rows, block, [&](int64_t, int64_t first, int64_t count) {
            bias_gelu_rows(static_cast<const T*>(x) + first * features, bias, count, features,
                           static_cast<T*>(y) + first * features);
        });
    });
}

// `block_grads: [blocks, features]`, gradients of the bias: zeroed and then summed by the caller.
SCANLINE_API int bias_gelu_backward(void* pool, int64_t rows, int64_t features, int64_t block,
                                    int bf16, const void* grad, const void* x, const float* bias,
                                    void* grad_x, float* block_grads) {
    return dispatch_dtype(bf16, [&](auto element) {
        using T = decltype(element);
        parallel_for_blocks(pool, rows, block, [&](int64_t i, int64_t first, int64_t count) {
            bias_gelu_backward_rows(static_cast<const T*>(grad) + first * features,
                                    static_cast<const T*>(x) + first * features, bias, count, features,
                                    static_cast<T*>(grad_x) + first * features,
                                    block_grads + i * features);
        });
    });
}

// Gradient of summed table rows. `grad: [N, D]`, `ids: [N, ids_per_sum]`, `gradient: [rows, D]`, zeroed
// by the caller. Each thread owns some rows of the table and adds in the order of N.
SCANLINE_API int embedding_sum_backward(void* pool, int64_t count, int64_t ids_per_sum, int64_t rows,
                                        int64_t features, const float* grad, const int64_t* ids,
                                        float* gradient) {
    const int64_t threads = static_cast<ThreadPool*>(pool)->size();
    const int64_t blocks = threads == 1 ? 1 : 4 * threads;  // each reads all ids
    const int64_t block = (rows + blocks - 1) / blocks;
    parallel_for_blocks(pool, rows, block, [&](int64_t, int64_t first, int64_t own) {
        for (int64_t n = 0; n < count; ++n)
            for (int64_t p = 0; p < ids_per_sum; ++p) {
                const int64_t row = ids[n * ids_per_sum + p];
                if (row < first || row >= first + own) continue;
                float* const to = gradient + row * features;
                for (int64_t d = 0; d < features; d += LANES)
                    store_row(to + d, load_row(to + d) + load_row(grad + n * features + d));
            }
    });
    return 0;
}
