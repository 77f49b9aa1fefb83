// Causal linear attention over whole images, and its gradient: a state a head, one position after
// the other. The definition is kernels/attention/definitions.py's (eq. 7, 9-12 and 13-15).
//
// A head's sums stay in the first caches while the image streams past: half the multiplications of
// the form in chunks, and no small matrices. Heads take turns, some positions each, for they lie side by
// side: one head alone would read a cache line here and there.
#pragma once

#include <algorithm>
#include <optional>

#include "elements.h"

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

// S[i] += a[i] x for each row of `sums`, then Σ_i b[i] S[i]: N vectors a row.
template <int N>
inline void absorb(float* sums, int rows, const float* a, const Vec (&x)[N], const float* b,
                   Vec (&read)[N]) {
    Vec even[N] = {}, odd[N] = {};  // two chains of additions each
    for (int i = 0; i < rows; i += 2) {
        float* const row = sums + i * N * LANES;
        const Vec a0 = broadcast(a[i]), b0 = broadcast(b[i]);
        const Vec a1 = broadcast(a[i + 1]), b1 = broadcast(b[i + 1]);
        for (int n = 0; n < N; ++n) {
            const Vec s0 = fma(a0, x[n], load(row + n * LANES));
            store(row + n * LANES, s0);
            even[n] = fma(b0, s0, even[n]);
        }
        for (int n = 0; n < N; ++n) {
            const Vec s1 = fma(a1, x[n], load(row + (N + n) * LANES));
            store(row + (N + n) * LANES, s1);
            odd[n] = fma(b1, s1, odd[n]);
        }
    }
    for (int n = 0; n < N; ++n) read[n] = even[n] + odd[n];
}

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
        for (int64_t t = first; t < last; ++t) {
            const Features query(part(t, QUERY)), key(part(t, KEY));
            const Given value(part(t, VALUE));
            Vec read[N];
            absorb<N>(sums_, K, key.at, value.vec, query.at, read);
            z_.add(key.vec);
            const float denominator = dot(query.vec, z_.vec) + sizes_.epsilon;
            arrays_.denominators[index(t)] = denominator;
            T* const out = arrays_.o + place(t);
            for (int n = 0; n < N; ++n) store_row(out + n * LANES, read[n] / denominator);
        }
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
        for (int64_t t = first; t < last; ++t) {
            const Features query(part(t, QUERY)), key(part(t, KEY));
            const Given value(part(t, VALUE));
            const float d = arrays_.denominators[index(t)];
            const Given g(arrays_.grad_o + place(t), 1.0f / d);
            Vec grad[N];
            absorb<N>(sums_, K, value.at, key.vec, g.at, grad);
            z_.add(key.vec);
            const float of_denominator = of_denominators_[t] = -dot(query.vec, grad) / d;
            for (int n = 0; n < N; ++n)
                grad[n] = fma(z_.vec[n], broadcast(of_denominator), grad[n]) * query.slope(n);
            give(t, QUERY, grad);
        }
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
        for (int64_t t = last - 1; t >= first; --t) {
            const Features query(part(t, QUERY)), key(part(t, KEY));
            const Given value(part(t, VALUE));
            const Given g(arrays_.grad_o + place(t), 1.0f / arrays_.denominators[index(t)]);
            Vec of_value[N], of_key[N];
            absorb<N>(sums_, K, query.at, g.vec, key.at, of_value);
            absorb<N>(transposed_, K, g.at, query.vec, value.at, of_key);
            for (int n = 0; n < N; ++n) {
                z_.vec[n] = fma(query.vec[n], broadcast(of_denominators_[t]), z_.vec[n]);
                of_key[n] = (of_key[n] + z_.vec[n]) * key.slope(n);
            }
            give(t, KEY, of_key);
            give(t, VALUE, of_value);
        }
    }
    void end_gradients() {
        std::copy_n(sums_, K * K, state(arrays_.grad_kv));
        z_.give(vector(arrays_.grad_z));
        for (int part = 0; part < 3; ++part)
            totals_[part].give(arrays_.of_images + (image_ * 3 + part) * width_ + head_ * K);
    }

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

    // A head's part of a product at a position, and the bias that belongs to it.
    struct Part {
        const T* product;
        const float* bias;
        Vec at(int n) const { return load_row(product + n * LANES) + load_row(bias + n * LANES); }
    };

    // A vector both as registers and as numbers to broadcast.
    struct Numbers {
        Vec vec[N];
        alignas(64) float at[K];

        void keep() {
            for (int n = 0; n < N; ++n) store(at + n * LANES, vec[n]);
        }
    };

    struct Features : Numbers {
        explicit Features(const Part& from) {
            for (int n = 0; n < N; ++n) {
                const Vec x = from.at(n);
                // `max` and `min` would turn what is no number into one.
                this->vec[n] = select((VecInt)(x == x), feature_map(x), x);
            }
            this->keep();
        }
        // φ'(x) is 1 for x > 0 and e^x = φ(x) elsewhere.
        Vec slope(int n) const { return min(this->vec[n], broadcast(1.0f)); }
    };

    struct Given : Numbers {
        explicit Given(const Part& from) {
            for (int n = 0; n < N; ++n) this->vec[n] = from.at(n);
            this->keep();
        }
        Given(const T* from, float scale) {
            for (int n = 0; n < N; ++n) this->vec[n] = load_row(from + n * LANES) * scale;
            this->keep();
        }
    };

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

    Part part(int64_t t, int number) const {
        return {arrays_.qkv + wide(t, number), arrays_.bias + number * width_ + head_ * K};
    }
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
        for (int64_t t = 0; t < positions_; t += TURN)
            each([&](Head& head) { head.forward(t, std::min(t + TURN, positions_)); });
        each([](Head& head) { head.end(); });
    }
    void backward() {
        each([](Head& head) { head.begin_queries(); });
        for (int64_t t = 0; t < positions_; t += TURN)
            each([&](Head& head) { head.queries(t, std::min(t + TURN, positions_)); });
        each([](Head& head) { head.begin_keys_and_values(); });
        for (int64_t t = positions_; t > 0; t -= TURN)
            each([&](Head& head) { head.keys_and_values(std::max<int64_t>(t - TURN, 0), t); });
        each([](Head& head) { head.end_gradients(); });
    }

private:
    using Head = HeadPass<N, T>;
    static constexpr int64_t TURN = 16;

    template <typename Work>
    void each(const Work& work) {
        for (int64_t h = 0; h < count_; ++h) work(*heads_[h]);
    }

    int64_t positions_, count_;
    std::optional<Head> heads_[MOST];
};

}  // namespace scanline
