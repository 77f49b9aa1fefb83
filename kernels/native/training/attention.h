// Causal linear attention over whole images, and its gradient: a state a head, one position after
// the other. The definition is kernels/attention/naive.py's (eq. 7, 9-12 and 13-15).
//
// A head's sums stay in the first caches while the image streams past: half the multiplications of
// the form in chunks, and no small matrices. Heads take turns, some positions each, for they lie side by
// side: one head alone would read a cache line here and there.
#pragma once

#include <algorithm>
#include <optional>

#include "state_update.h"

namespace scanline {

struct AttentionSizes {
    int64_t images, positions, heads, head_size;
    float epsilon;
};

// `qkv, grad: [B, T, 3, H, K]`, `bias: [3, H, K]`, `o, grad_o: [B, T, H, K]`, `denominators:
// [B, T, H]`. `kv, grad_kv: [B, H, K, K]` and `z, grad_z: [B, H, K]`: forwards the state before, left
// as the one after; backwards the state before, and the gradient of the one after, left as that of the
// one before. `of_images: [B, 3, H, K]`: the sums of `grad` over positions.
template <typename T>
struct AttentionArrays {
    const T* qkv;
    const float* bias;
    float* denominators;
    float *kv, *z;
    T* o = nullptr;
    const T* grad_o = nullptr;
    float *grad_kv = nullptr, *grad_z = nullptr;
    T* grad = nullptr;
    float* of_images = nullptr;
};

template <int N>
inline float dot(const Vec (&a)[N], const Vec (&b)[N]) {
    Vec total = a[0] * b[0];
    for (int n = 1; n < N; ++n) total = fma(a[n], b[n], total);
    return sum(total);
}

// One head of one image. `N` vectors make a head, `T` is the type of the tensors' elements. `memory`:
// `scratch` floats, aligned.
template <int N, typename T>
class HeadPass {
public:
    static constexpr int K = N * LANES;
    static int64_t scratch(const AttentionSizes& sizes) {
        return 2 * K * K + (sizes.positions + LANES - 1) / LANES * LANES;
    }

    HeadPass(const AttentionSizes& sizes, const AttentionArrays<T>& arrays, int64_t image,
             int64_t head, float* memory)
        : sizes_(sizes), arrays_(arrays), image_(image), head_(head), width_(sizes.heads * K),
          sums_(memory), transposed_(memory + K * K), of_denominators_(memory + 2 * K * K) {}

    void begin() {
        std::copy_n(state(arrays_.kv), K * K, sums_);
        z_.take(vector(arrays_.z));
    }
    void forward(int64_t first, int64_t last) {
        together(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            Numbers<N> query[P], key[P], value[P];
            for (int p = 0; p < P; ++p) {
                fetch(first + i + p + TURN);
                features(first + i + p, QUERY, query[p]), features(first + i + p, KEY, key[p]);
                given(first + i + p, VALUE, value[p]);
            }
            Vec read[P][N];
            absorb<N, P>(sums_, K, key, value, query, read);
            for (int p = 0; p < P; ++p) {
                z_.add(key[p].vec);
                const float denominator = dot(query[p].vec, z_.vec) + sizes_.epsilon;
                arrays_.denominators[index(first + i + p)] = denominator;
                T* const out = arrays_.o + place(first + i + p);
                for (int n = 0; n < N; ++n) store_row(out + n * LANES, read[p][n] / denominator);
            }
        });
    }
    void end() {
        std::copy_n(sums_, K * K, state(arrays_.kv));
        z_.give(vector(arrays_.z));
    }

    // Eq. 13, onwards in time: dφ(q) = S g + z g', with g and g' the gradients of numerator and
    // denominator; g' = -φ(q)·(S g) / d is kept.
    void begin_queries() {
        transpose(state(arrays_.kv), sums_);  // [V, K]
        z_.take(vector(arrays_.z));
        totals_[QUERY] = Row();
    }
    void queries(int64_t first, int64_t last) {
        together(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            Numbers<N> query[P], key[P], value[P], g[P];
            for (int p = 0; p < P; ++p) {
                fetch(first + i + p + TURN);
                features(first + i + p, QUERY, query[p]), features(first + i + p, KEY, key[p]);
                given(first + i + p, VALUE, value[p]), gradient(first + i + p, g[p]);
            }
            Vec grad[P][N];
            absorb<N, P>(sums_, K, value, key, g, grad);
            for (int p = 0; p < P; ++p) {
                const int64_t t = first + i + p;
                z_.add(key[p].vec);
                const float of_denominator = of_denominators_[t] =
                    -dot(query[p].vec, grad[p]) / arrays_.denominators[index(t)];
                for (int n = 0; n < N; ++n)
                    grad[p][n] = fma(z_.vec[n], broadcast(of_denominator), grad[p][n]) *
                                 slope(query[p].vec[n]);
                give(t, QUERY, grad[p]);
            }
        });
    }

    // Eq. 14 and 15, back in time: with R = Σ φ(q) gᵀ over the positions from here on,
    // dφ(k) = R v + Σ φ(q) g' and dv = Rᵀ φ(k).
    void begin_keys_and_values() {
        std::copy_n(state(arrays_.grad_kv), K * K, sums_);  // R: [K, V]
        transpose(sums_, transposed_);
        z_.take(vector(arrays_.grad_z));
        totals_[KEY] = totals_[VALUE] = Row();
    }
    void keys_and_values(int64_t first, int64_t last) {
        together(last - first, [&](int64_t i, auto count) {
            constexpr int P = count;
            Numbers<N> query[P], key[P], value[P], g[P];
            for (int p = 0; p < P; ++p) {
                const int64_t t = last - 1 - i - p;
                fetch(t - TURN);
                features(t, QUERY, query[p]), features(t, KEY, key[p]);
                given(t, VALUE, value[p]), gradient(t, g[p]);
            }
            Vec of_value[P][N], of_key[P][N];
            absorb<N, P>(sums_, K, query, g, key, of_value);
            absorb<N, P>(transposed_, K, g, query, value, of_key);
            for (int p = 0; p < P; ++p) {
                const int64_t t = last - 1 - i - p;
                for (int n = 0; n < N; ++n) {
                    z_.vec[n] = fma(query[p].vec[n], broadcast(of_denominators_[t]), z_.vec[n]);
                    of_key[p][n] = (of_key[p][n] + z_.vec[n]) * slope(key[p].vec[n]);
                }
                give(t, KEY, of_key[p]);
                give(t, VALUE, of_value[p]);
            }
        });
    }
    void end_gradients() {
        std::copy_n(sums_, K * K, state(arrays_.grad_kv));
        z_.give(vector(arrays_.grad_z));
        for (int part = 0; part < 3; ++part)
            totals_[part].give(arrays_.of_images + (image_ * 3 + part) * width_ + head_ * K);
    }

    // Positions until the next head has its turn.
    static constexpr int64_t TURN = 16;

private:
    static constexpr int QUERY = 0, KEY = 1, VALUE = 2;

    struct Row {
        Vec vec[N] = {};

        void take(const float* from) {
            for (int n = 0; n < N; ++n) vec[n] = load_row(from + n * LANES);
        }
        void add(const Vec (&other)[N]) {
            for (int n = 0; n < N; ++n) vec[n] = vec[n] + other[n];
        }
        void give(float* to) const {
            for (int n = 0; n < N; ++n) store_row(to + n * LANES, vec[n]);
        }
    };

    // Call `work(i, P)` for positions i to i + P, as many together as can be.
    template <typename Work>
    static void together(int64_t positions, const Work& work) {
        constexpr int P = TOGETHER<N>;
        int64_t i = 0;
        for (; i + P <= positions; i += P) work(i, std::integral_constant<int, P>{});
        for (; i < positions; ++i) work(i, std::integral_constant<int, 1>{});
    }

    // Ask for what a position holds, which is read soon: a CPU does not foresee whose turn it is. In line,
    // for gcc takes a call of such a function to do nothing.
    ALWAYS_INLINE void fetch(int64_t t) const {
        if (t < 0 || t >= sizes_.positions) return;
        constexpr int64_t LINE = 64 / sizeof(T);
        for (int64_t i = 0; i < K; i += LINE) {
            for (int part = 0; part < 3; ++part) __builtin_prefetch(arrays_.qkv + wide(t, part) + i);
            if (arrays_.grad_o) __builtin_prefetch(arrays_.grad_o + place(t) + i);
        }
    }

    // This head's part of the product at a position, with the bias that belongs to it.
    ALWAYS_INLINE void given(int64_t t, int part, Numbers<N>& x) const {
        const T* const product = arrays_.qkv + wide(t, part);
        const float* const bias = arrays_.bias + part * width_ + head_ * K;
        for (int n = 0; n < N; ++n)
            x.vec[n] = load_row(product + n * LANES) + load_row(bias + n * LANES);
        x.keep();
    }
    ALWAYS_INLINE void features(int64_t t, int part, Numbers<N>& x) const {
        given(t, part, x);
        // `max` and `min` would turn what is no number into one.
        for (Vec& v : x.vec) v = select((VecInt)(v == v), feature_map(v), v);
        x.keep();
    }
    // φ'(x) is 1 for x > 0 and e^x = φ(x) elsewhere.
    static Vec slope(Vec feature) { return min(feature, broadcast(1.0f)); }

    // Of the numerator at a position.
    ALWAYS_INLINE void gradient(int64_t t, Numbers<N>& g) const {
        const T* const from = arrays_.grad_o + place(t);
        const float scale = 1.0f / arrays_.denominators[index(t)];
        for (int n = 0; n < N; ++n) g.vec[n] = load_row(from + n * LANES) * scale;
        g.keep();
    }

    static void transpose(const float* from, float* to) {
        for (int i = 0; i < K; ++i)
            for (int j = 0; j < K; ++j) to[j * K + i] = from[i * K + j];
    }

    // Where this head's numbers lie in tensors of all heads.
    int64_t at(int64_t t) const { return image_ * sizes_.positions + t; }
    int64_t index(int64_t t) const { return at(t) * sizes_.heads + head_; }
    int64_t place(int64_t t) const { return index(t) * K; }
    int64_t wide(int64_t t, int part) const { return (at(t) * 3 + part) * width_ + head_ * K; }
    float* vector(float* all) const { return all + (image_ * sizes_.heads + head_) * K; }
    float* state(float* all) const { return all + (image_ * sizes_.heads + head_) * K * K; }

    void give(int64_t t, int part, const Vec (&grad)[N]) {
        T* const out = arrays_.grad + wide(t, part);
        for (int n = 0; n < N; ++n) store_row(out + n * LANES, grad[n]);
        totals_[part].add(grad);
    }

    const AttentionSizes& sizes_;
    const AttentionArrays<T>& arrays_;
    int64_t image_, head_, width_;
    float *sums_, *transposed_, *of_denominators_;
    Row z_, totals_[3];
};

// Some neighbouring heads of an image, which take turns.
template <int N, typename T>
class HeadsPass {
public:
    // As many as a quarter of a megabyte holds the sums of, up to 8.
    static constexpr int MOST = std::clamp((1 << 15) / (HeadPass<N, T>::K * HeadPass<N, T>::K), 1, 8);

    HeadsPass(const AttentionSizes& sizes, const AttentionArrays<T>& arrays, int64_t image,
              int64_t first, int64_t count, float* memory)
        : positions_(sizes.positions), count_(count) {
        for (int64_t h = 0; h < count; ++h)
            heads_[h].emplace(sizes, arrays, image, first + h,
                              memory + h * HeadPass<N, T>::scratch(sizes));
    }

    void forward() {
        each([](Head& head) { head.begin(); });
        for (int64_t t = 0; t < positions_; t += Head::TURN)
            each([&](Head& head) { head.forward(t, std::min(t + Head::TURN, positions_)); });
        each([](Head& head) { head.end(); });
    }
    void backward() {
        each([](Head& head) { head.begin_queries(); });
        for (int64_t t = 0; t < positions_; t += Head::TURN)
            each([&](Head& head) { head.queries(t, std::min(t + Head::TURN, positions_)); });
        each([](Head& head) { head.begin_keys_and_values(); });
        for (int64_t t = positions_; t > 0; t -= Head::TURN)
            each([&](Head& head) { head.keys_and_values(std::max<int64_t>(t - Head::TURN, 0), t); });
        each([](Head& head) { head.end_gradients(); });
    }

private:
    using Head = HeadPass<N, T>;

    template <typename Work>
    void each(const Work& work) {
        for (int64_t h = 0; h < count_; ++h) work(*heads_[h]);
    }

    int64_t positions_, count_;
    std::optional<Head> heads_[MOST];
};

}  // namespace scanline
