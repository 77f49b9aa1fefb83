// Causal linear attention over whole images and its gradient, one position after another with a state
// per head. Must agree with kernels/attention/naive.py (eq. 7, 9-12 and 13-15).
//
// A head's state stays in the L1 or L2 cache while the image streams past. This needs half the
// multiplications of the chunked form, and no small matrix products. The heads of an image are
// processed alternately in blocks of positions, because they are adjacent in memory and one head alone
// would use only part of each cache line.
#pragma once

#include <algorithm>
#include <optional>

#include "state_update.h"

namespace scanline {

struct AttentionSizes {
    int64_t images, positions, heads, head_size;
};

// Tensors of a call. `qkv, grad: [B, T, 3, H, K]`, `bias: [3, H, K]`, `o, grad_o: [B, T, H, K]`,
// `denominators: [B, T, H]`. `grad_bias: [B, 3, H, K]` gets the sums of `grad` over positions.
template <typename T>
struct AttentionArrays {
    const T* qkv;
    const float* bias;
    float* denominators;
    T* o = nullptr;
    const T* grad_o = nullptr;
    T* grad = nullptr;
    float* grad_bias = nullptr;
};

template <int N>
inline float dot(const Vec (&a)[N], const Vec (&b)[N]) {
    Vec total = a[0] * b[0];
    for (int n = 1; n < N; ++n) total = fma(a[n], b[n], total);
    return horizontal_sum(total);
}

// One head of one image. A head has `N` vectors; `T` is the type of the tensors' elements. `memory`
// holds `scratch()` floats, aligned.
template <int N, typename T>
class HeadAttention {
public:
    static constexpr int K = N * LANES;
    static int64_t scratch(const AttentionSizes& sizes) {
        return 2 * K * K + (sizes.positions + LANES - 1) / LANES * LANES;
    }

    HeadAttention(const AttentionSizes& sizes, const AttentionArrays<T>& arrays, int64_t image,
                  int64_t head, float* memory)
        : sizes_(sizes), arrays_(arrays), image_(image), head_(head), width_(sizes.heads * K),
          state_(memory), transposed_(memory + K * K), grad_denominators_(memory + 2 * K * K) {}

    void begin() {
        std::fill_n(state_, K * K, 0.0f);
        z_ = Row();
    }
    void forward(int64_t first, int64_t last) {
        in_blocks(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            HeadVector<N> query[P], key[P], value[P];
            for (int p = 0; p < P; ++p) {
                prefetch(first + i + p + BLOCK_POSITIONS);
                load_features(first + i + p, QUERY, query[p]);
                load_features(first + i + p, KEY, key[p]);
                load_input(first + i + p, VALUE, value[p]);
            }
            Vec read[P][N];
            update_and_read<N, P>(state_, key, value, query, read);
            for (int p = 0; p < P; ++p) {
                z_.add(key[p].vec);
                const float denominator = dot(query[p].vec, z_.vec) + ATTENTION_EPS;
                arrays_.denominators[head_index(first + i + p)] = denominator;
                T* const out = arrays_.o + output_index(first + i + p);
                for (int n = 0; n < N; ++n) store_row(out + n * LANES, read[p][n] / denominator);
            }
        });
    }

    // Eq. 13, forwards in time: dφ(q) = S g + z g', where g and g' are the gradients of numerator and
    // denominator. g' = -φ(q)·(S g) / d is stored for the second pass.
    void begin_queries() {
        begin();  // state: [V, K]
        totals_[QUERY] = Row();
    }
    void queries(int64_t first, int64_t last) {
        in_blocks(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            HeadVector<N> query[P], key[P], value[P], g[P];
            for (int p = 0; p < P; ++p) {
                prefetch(first + i + p + BLOCK_POSITIONS);
                load_features(first + i + p, QUERY, query[p]);
                load_features(first + i + p, KEY, key[p]);
                load_input(first + i + p, VALUE, value[p]), load_gradient(first + i + p, g[p]);
            }
            Vec grad[P][N];
            update_and_read<N, P>(state_, value, key, g, grad);
            for (int p = 0; p < P; ++p) {
                const int64_t t = first + i + p;
                z_.add(key[p].vec);
                const float grad_denominator = grad_denominators_[t] =
                    -dot(query[p].vec, grad[p]) / arrays_.denominators[head_index(t)];
                for (int n = 0; n < N; ++n)
                    grad[p][n] = fma(z_.vec[n], broadcast(grad_denominator), grad[p][n]) *
                                 slope(query[p].vec[n]);
                store_gradient(t, QUERY, grad[p]);
            }
        });
    }

    // Eq. 14 and 15, backwards in time: with R = Σ φ(q) gᵀ over this and all later positions,
    // dφ(k) = R v + Σ φ(q) g' and dv = Rᵀ φ(k).
    void begin_keys_and_values() {
        begin();  // R: [K, V]
        std::fill_n(transposed_, K * K, 0.0f);
        totals_[KEY] = totals_[VALUE] = Row();
    }
    void keys_and_values(int64_t first, int64_t last) {
        in_blocks(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            HeadVector<N> query[P], key[P], value[P], g[P];
            for (int p = 0; p < P; ++p) {
                const int64_t t = last - 1 - i - p;
                prefetch(t - BLOCK_POSITIONS);
                load_features(t, QUERY, query[p]), load_features(t, KEY, key[p]);
                load_input(t, VALUE, value[p]), load_gradient(t, g[p]);
            }
            Vec grad_value[P][N], grad_key[P][N];
            update_and_read<N, P>(state_, query, g, key, grad_value);
            update_and_read<N, P>(transposed_, g, query, value, grad_key);
            for (int p = 0; p < P; ++p) {
                const int64_t t = last - 1 - i - p;
                for (int n = 0; n < N; ++n) {
                    z_.vec[n] = fma(query[p].vec[n], broadcast(grad_denominators_[t]), z_.vec[n]);
                    grad_key[p][n] = (grad_key[p][n] + z_.vec[n]) * slope(key[p].vec[n]);
                }
                store_gradient(t, KEY, grad_key[p]);
                store_gradient(t, VALUE, grad_value[p]);
            }
        });
    }
    void end_gradients() {
        for (int part = 0; part < 3; ++part)
            totals_[part].store(arrays_.grad_bias + (image_ * 3 + part) * width_ + head_ * K);
    }

    // Number of positions before switching to the next head.
    static constexpr int64_t BLOCK_POSITIONS = 16;

private:
    static constexpr int QUERY = 0, KEY = 1, VALUE = 2;

    struct Row {
        Vec vec[N] = {};

        void add(const Vec (&other)[N]) {
            for (int n = 0; n < N; ++n) vec[n] = vec[n] + other[n];
        }
        void store(float* to) const {
            for (int n = 0; n < N; ++n) store_row(to + n * LANES, vec[n]);
        }
    };

    // Call `work(i, P)` for positions i to i + P - 1, in blocks as large as possible.
    template <typename Work>
    static void in_blocks(int64_t positions, const Work& work) {
        constexpr int P = POSITIONS_AT_ONCE<N>;
        int64_t i = 0;
        for (; i + P <= positions; i += P) work(i, std::integral_constant<int, P>{});
        for (; i < positions; ++i) work(i, std::integral_constant<int, 1>{});
    }

    // Prefetch a position's data, because alternating between heads defeats the hardware prefetcher.
    // Always inlined, because gcc considers a call to a function of prefetches to have no effect.
    ALWAYS_INLINE void prefetch(int64_t t) const {
        if (t < 0 || t >= sizes_.positions) return;
        constexpr int64_t LINE = 64 / sizeof(T);
        for (int64_t i = 0; i < K; i += LINE) {
            for (int part = 0; part < 3; ++part)
                __builtin_prefetch(arrays_.qkv + qkv_index(t, part) + i);
            if (arrays_.grad_o) __builtin_prefetch(arrays_.grad_o + output_index(t) + i);
        }
    }

    // Load this head's part of the product at a position, plus bias.
    ALWAYS_INLINE void load_input(int64_t t, int part, HeadVector<N>& x) const {
        const T* const product = arrays_.qkv + qkv_index(t, part);
        const float* const bias = arrays_.bias + part * width_ + head_ * K;
        for (int n = 0; n < N; ++n)
            x.vec[n] = load_row(product + n * LANES) + load_row(bias + n * LANES);
        x.spill();
    }
    ALWAYS_INLINE void load_features(int64_t t, int part, HeadVector<N>& x) const {
        load_input(t, part, x);
        // Keep NaN, which `max` and `min` would drop.
        for (Vec& v : x.vec) v = select((VecInt)(v == v), feature_map(v), v);
        x.spill();
    }
    // φ'(x): 1 for x > 0, otherwise e^x = φ(x).
    static Vec slope(Vec feature) { return min(feature, broadcast(1.0f)); }

    // Load the gradient of the numerator at a position.
    ALWAYS_INLINE void load_gradient(int64_t t, HeadVector<N>& g) const {
        const T* const from = arrays_.grad_o + output_index(t);
        const float scale = 1.0f / arrays_.denominators[head_index(t)];
        for (int n = 0; n < N; ++n) g.vec[n] = load_row(from + n * LANES) * scale;
        g.spill();
    }

    // Offsets of this head in tensors of all heads.
    int64_t row(int64_t t) const { return image_ * sizes_.positions + t; }
    int64_t head_index(int64_t t) const { return row(t) * sizes_.heads + head_; }
    int64_t output_index(int64_t t) const { return head_index(t) * K; }
    int64_t qkv_index(int64_t t, int part) const { return (row(t) * 3 + part) * width_ + head_ * K; }

    void store_gradient(int64_t t, int part, const Vec (&grad)[N]) {
        T* const out = arrays_.grad + qkv_index(t, part);
        for (int n = 0; n < N; ++n) store_row(out + n * LANES, grad[n]);
        totals_[part].add(grad);
    }

    const AttentionSizes& sizes_;
    const AttentionArrays<T>& arrays_;
    int64_t image_, head_, width_;
    float *state_, *transposed_, *grad_denominators_;
    Row z_, totals_[3];
};

// A group of adjacent heads of an image, processed alternately in blocks of positions.
template <int N, typename T>
class HeadGroup {
public:
    // Maximum number of heads: their states fit in 256 kB, and at most 8.
    static constexpr int K = HeadAttention<N, T>::K;
    static constexpr int MAX_HEADS = std::clamp((1 << 15) / (K * K), 1, 8);

    HeadGroup(const AttentionSizes& sizes, const AttentionArrays<T>& arrays, int64_t image,
              int64_t first, int64_t count, float* memory)
        : positions_(sizes.positions), count_(count) {
        for (int64_t h = 0; h < count; ++h)
            heads_[h].emplace(sizes, arrays, image, first + h,
                              memory + h * HeadAttention<N, T>::scratch(sizes));
    }

    void forward() {
        each([](Head& head) { head.begin(); });
        for (int64_t t = 0; t < positions_; t += Head::BLOCK_POSITIONS)
            each([&](Head& head) { head.forward(t, std::min(t + Head::BLOCK_POSITIONS, positions_)); });
    }
    void backward() {
        each([](Head& head) { head.begin_queries(); });
        for (int64_t t = 0; t < positions_; t += Head::BLOCK_POSITIONS)
            each([&](Head& head) { head.queries(t, std::min(t + Head::BLOCK_POSITIONS, positions_)); });
        each([](Head& head) { head.begin_keys_and_values(); });
        for (int64_t t = positions_; t > 0; t -= Head::BLOCK_POSITIONS)
            each([&](Head& head) {
                head.keys_and_values(std::max<int64_t>(t - Head::BLOCK_POSITIONS, 0), t);
            });
        each([](Head& head) { head.end_gradients(); });
    }

private:
    using Head = HeadAttention<N, T>;

    template <typename Work>
    void each(const Work& work) {
        for (int64_t h = 0; h < count_; ++h) work(*heads_[h]);
    }

    int64_t positions_, count_;
    std::optional<Head> heads_[MAX_HEADS];
};

}  // namespace scanline
