// What training runs over whole batches beside matrix products, behind a plain C ABI: see
// kernels/native/training/library.py. Work is shared out by image, head or piece, and sums are made in
// one order, so results do not depend on the number of threads.
//
// `bf16` says what is behind void*: bfloat16, else floats. Each gives 0 where it was done, and else
// has done nothing for want of memory.

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// gcc orders Arm's instructions before it gives them registers, and spills sums for it.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <algorithm>
#include <new>

#include "../thread_pool.h"
#include "activation.h"
#include "attention.h"
#include "categorical.h"
#include "mixture.h"
#include "residual.h"
#include "weight_gradient.h"

#define SCANLINE_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace scanline;

// Call `work(i, thread)` for each i below `count`, whichever thread is free.
template <typename Work>
void share_out(void* pool, int64_t count, const Work& work) {
    auto& threads = *static_cast<Pool*>(pool);
    std::atomic<int64_t> next{0};
    const auto most = std::clamp(count, int64_t{1}, static_cast<int64_t>(threads.threads()));
    threads.run(static_cast<int>(most), [&](int thread) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i, thread);
    });
}

// Call `work(i, first, count)` for each piece i of `whole`, of so many.
template <typename Work>
void in_pieces(void* pool, int64_t whole, int64_t piece, const Work& work) {
    share_out(pool, (whole + piece - 1) / piece, [&](int64_t i, int) {
        work(i, i * piece, std::min(piece, whole - i * piece));
    });
}

// Memory for each thread, had before the work begins: a thread cannot say that there is none.
class Scratch {
public:
    Scratch(void* pool, int64_t floats)
        : each_((static_cast<size_t>(floats) + 15) / 16 * 16),
          memory_(each_ * static_cast<size_t>(static_cast<Pool*>(pool)->threads())) {}
    float* of(int thread) { return memory_.get() + each_ * static_cast<size_t>(thread); }

private:
    size_t each_;
    Buffer<float> memory_;
};

// Call `work` with an element of the tensors' type.
template <typename Work>
int with_elements(int bf16, const Work& work) {
    try {
        if (bf16) work(uint16_t{});
        else work(float{});
        return 0;
    } catch (...) {  // no exception may leave C
        return 1;
    }
}

// Call `work` with such an element, and with the number of vectors in a head.
template <typename Work>
int with_heads(int bf16, int64_t head_size, const Work& work) {
    return with_elements(bf16, [&](auto element) {
        switch (head_size / LANES) {  // `supports_attention` has seen that it is one of these
            case 1: return work(element, std::integral_constant<int, 1>{});
            case 2: return work(element, std::integral_constant<int, 2>{});
            case 4: return work(element, std::integral_constant<int, 4>{});
            case 8: return work(element, std::integral_constant<int, 8>{});
        }
    });
}

// Call `work` with the heads of each image: all of them together, or each alone where images are too
// few for the threads.
template <int N, typename T, typename Work>
void attend(void* pool, const AttentionSizes& sizes, const AttentionArrays<T>& arrays,
            const Work& work) {
    using Heads = HeadsPass<N, T>;
    const bool few = sizes.images < static_cast<Pool*>(pool)->threads();
    const int64_t together = few ? 1 : std::min<int64_t>(sizes.heads, Heads::MOST);
    const int64_t groups = (sizes.heads + together - 1) / together;
    Scratch scratch(pool, together * HeadPass<N, T>::scratch(sizes));
    share_out(pool, sizes.images * groups, [&](int64_t i, int thread) {
        const int64_t first = i % groups * together;
        Heads heads(sizes, arrays, i / groups, first, std::min(together, sizes.heads - first),
                    scratch.of(thread));
        work(heads);
    });
}

}  // namespace

SCANLINE_API void* training_open(int threads) {
    try {
        return new Pool(threads);
    } catch (...) {
        return nullptr;
    }
}

SCANLINE_API void training_close(void* pool) { delete static_cast<Pool*>(pool); }

SCANLINE_API int training_lanes() { return LANES; }

// `grad: [rows, outputs]`, `x: [rows, inputs]`, `weight: [outputs, inputs]`, zeroed.
SCANLINE_API int weight_gradient(void* pool, int64_t rows, int64_t outputs, int64_t inputs, int bf16,
                                 const void* grad, const void* x, float* weight) {
    return with_elements(bf16, [&](auto element) {
        using T = decltype(element);
        const int64_t threads = static_cast<Pool*>(pool)->threads();
        constexpr int tile = WeightGradient<T>::OUTPUTS;
        const int64_t tiles = (outputs + tile - 1) / tile;
        const int64_t piece = (tiles + threads - 1) / threads * tile;
        Scratch scratch(pool, WeightGradient<T>::scratch(inputs, piece));
        share_out(pool, (outputs + piece - 1) / piece, [&](int64_t i, int thread) {
            const int64_t first = i * piece, mine = std::min(piece, outputs - first);
            WeightGradient<T>(rows, outputs, inputs, first, mine, scratch.of(thread))
                .compute(static_cast<const T*>(grad), static_cast<const T*>(x), weight);
        });
    });
}

SCANLINE_API int attention_forward(void* pool, const AttentionSizes* sizes, int bf16,
                                   const void* qkv, const float* bias, float* kv, float* z,
                                   void* o, float* denominators) {
    return with_heads(bf16, sizes->head_size, [&](auto element, auto n) {
        using T = decltype(element);
        AttentionArrays<T> arrays{static_cast<const T*>(qkv), bias, denominators, kv, z};
        arrays.o = static_cast<T*>(o);
        attend<n>(pool, *sizes, arrays, [](auto& heads) { heads.forward(); });
    });
}

SCANLINE_API int attention_backward(void* pool, const AttentionSizes* sizes, int bf16,
                                    const void* qkv, const float* bias, float* denominators,
                                    const void* grad_o, float* kv, float* z, float* grad_kv,
                                    float* grad_z, void* grad, float* of_images) {
    return with_heads(bf16, sizes->head_size, [&](auto element, auto n) {
        using T = decltype(element);
        AttentionArrays<T> arrays{static_cast<const T*>(qkv), bias, denominators, kv, z};
        arrays.grad_o = static_cast<const T*>(grad_o);
        arrays.grad_kv = grad_kv, arrays.grad_z = grad_z;
        arrays.grad = static_cast<T*>(grad), arrays.of_images = of_images;
        attend<n>(pool, *sizes, arrays, [](auto& heads) { heads.backward(); });
    });
}

// Null: `added`, `bias` and `grad_added` where nothing is added, and `grad_added` too where elements
// are float32, for which it would be `grad`; `grad_sum` where it is 0,
// `conv_weight` without a convolution.
SCANLINE_API int residual_forward(void* pool, const ResidualSizes* sizes, int bf16, const float* x,
                                  const void* added, const float* bias,
                                  const float* norm_weight, const float* norm_bias,
                                  const float* conv_weight, float* sum, void* y) {
    return with_elements(bf16, [&](auto element) {
        using T = decltype(element);
        Scratch scratch(pool, ResidualPass<T>::scratch_forward(*sizes));
        // Parts of an image, where images are too few for the threads.
        const int64_t threads = static_cast<Pool*>(pool)->threads(), rows = ResidualPass<T>::rows_of(*sizes);
        const int64_t parts = std::min(rows, (threads + sizes->images - 1) / sizes->images);
        share_out(pool, sizes->images * parts, [&](int64_t i, int thread) {
            const int64_t part = i % parts;
            ResidualPass<T>(*sizes, i / parts)
                .forward(rows * part / parts, rows * (part + 1) / parts, x,
                         static_cast<const T*>(added), bias, norm_weight, norm_bias, conv_weight,
                         sum, static_cast<T*>(y), scratch.of(thread));
        });
    });
}

// `of_images: [B, 8, D]`, zeroed: an image's own each, summed by the caller.
SCANLINE_API int residual_backward(void* pool, const ResidualSizes* sizes, int bf16,
                                   const float* grad_sum, const void* grad_y, const float* sum,
                                   const float* norm_weight, const float* norm_bias,
                                   const float* conv_weight, float* grad, void* grad_added,
                                   float* of_images) {
    return with_elements(bf16, [&](auto element) {
        using T = decltype(element);
        Scratch scratch(pool, ResidualPass<T>::scratch_backward(*sizes));
        share_out(pool, sizes->images, [&](int64_t i, int thread) {
            ResidualPass<T>(*sizes, i).backward(
                grad_sum, static_cast<const T*>(grad_y), sum, norm_weight, norm_bias, conv_weight,
                grad, static_cast<T*>(grad_added), of_images + i * PARAMETERS * sizes->features,
                scratch.of(thread));
        });
    });
}

// `x, y: [rows, features]`, of which each piece has so many rows.
SCANLINE_API int bias_gelu_forward(void* pool, int64_t rows, int64_t features, int64_t piece,
                                   int bf16, const void* x, const float* bias, void* y) {
    return with_elements(bf16, [&](auto element) {
        using T = decltype(element);
        in_pieces(pool, rows, piece, [&](int64_t, int64_t first, int64_t count) {
            bias_gelu(static_cast<const T*>(x) + first * features, bias, count, features,
                      static_cast<T*>(y) + first * features);
        });
    });
}

// `of_pieces: [pieces, features]`, zeroed: the gradient of the bias, summed by the caller.
SCANLINE_API int bias_gelu_backward(void* pool, int64_t rows, int64_t features, int64_t piece,
                                    int bf16, const void* grad, const void* x, const float* bias,
                                    void* grad_x, float* of_pieces) {
    return with_elements(bf16, [&](auto element) {
        using T = decltype(element);
        in_pieces(pool, rows, piece, [&](int64_t i, int64_t first, int64_t count) {
            bias_gelu_back(static_cast<const T*>(grad) + first * features,
                           static_cast<const T*>(x) + first * features, bias, count, features,
                           static_cast<T*>(grad_x) + first * features, of_pieces + i * features);
        });
    });
}

// `parameters, gradient: [P, size]`, `values: [P, channels]`, `nats: [P]`; so many to a piece.
SCANLINE_API int mixture_nll(void* pool, int64_t pixels, int64_t piece, int channels, int64_t size,
                              const float* parameters, const uint8_t* values, float* nats,
                              float* gradient) {
    in_pieces(pool, pixels, piece, [&](int64_t, int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i)
            nats[i] = scanline::mixture_nll(parameters + i * size, values + i * channels, channels,
                                             gradient + i * size);
    });
    return 0;
}

// `logits: [P, 256]`, `values, nats: [P]`, `sums: [P, 2]`.
SCANLINE_API int categorical_forward(void* pool, int64_t pixels, int64_t piece, const float* logits,
                                     const uint8_t* values, float* nats, LogSumExp* sums) {
    in_pieces(pool, pixels, piece, [&](int64_t, int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i) {
            sums[i] = LogSumExp::of(logits + i * VALUES);
            nats[i] = categorical_nll(logits + i * VALUES, values[i], sums[i]);
        }
    });
    return 0;
}

// `grad: [P]`, `gradient: [P, 256]`.
SCANLINE_API int categorical_backward(void* pool, int64_t pixels, int64_t piece, const float* grad,
                                      const float* logits, const uint8_t* values,
                                      const LogSumExp* sums, float* gradient) {
    in_pieces(pool, pixels, piece, [&](int64_t, int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i)
            categorical_slopes(logits + i * VALUES, values[i], sums[i], grad[i],
                               gradient + i * VALUES);
    });
    return 0;
}

// `grad: [N, D]`, `ids: [N, places]`, `gradient: [rows, D]`, zeroed: to each row of a table what was
// given where it had been added. A thread has rows of its own, and adds in the order of N.
SCANLINE_API int embedding_sum_backward(void* pool, int64_t count, int64_t places, int64_t rows,
                                      int64_t features, const float* grad, const int64_t* ids,
                                      float* gradient) {
    const int64_t threads = static_cast<Pool*>(pool)->threads();
    const int64_t pieces = threads == 1 ? 1 : 4 * threads;  // each reads all ids
    in_pieces(pool, rows, (rows + pieces - 1) / pieces, [&](int64_t, int64_t first, int64_t mine) {
        for (int64_t n = 0; n < count; ++n)
            for (int64_t p = 0; p < places; ++p) {
                const int64_t row = ids[n * places + p];
                if (row < first || row >= first + mine) continue;
                float* const to = gradient + row * features;
                for (int64_t d = 0; d < features; d += LANES)
                    store_row(to + d, load_row(to + d) + load_row(grad + n * features + d));
            }
    });
    return 0;
}
