// Causal linear attention over whole images, and its gradient: a state a head, one position after
// the other. The definition is kernels/attention/definitions.py's (eq. 7, 9-12 and 13-15).
//
// A head's sums are 4 to 16 KB, so they stay in the first cache while the image streams past: half
// the multiplications of the form in chunks, and no small matrices.
#pragma once

#include "elements.h"

namespace scanline {

struct AttentionSizes {
    int64_t images, positions, heads, head_size;
    float epsilon;
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

// One head of one image. `N` vectors make a head, `T` is the type of the tensors' elements.
template <int N, typename T>
class HeadPass {
public:
    static constexpr int K = N * LANES;

    HeadPass(const AttentionSizes& sizes, int64_t image, int64_t head)
        : sizes_(sizes), image_(image), head_(head), width_(sizes.heads * K) {}

    // `qkv: [B, T, 3, H, K]`, `bias: [3, H, K]`, `o: [B, T, H, K]`, `denominators: [B, T, H]`;
    // `kv: [B, H, K, K]` and `z: [B, H, K]` hold the state before and are left as the one after.
    void forward(const T* qkv, const float* bias, float* kv, float* z, T* o,
                 float* denominators) const {
        const Parts parts(*this, qkv, bias);
        Square sums;
        std::memcpy(sums.at, kv + number() * K * K, sizeof sums.at);
        Row z_sums(z + number() * K);
        for (int64_t t = 0; t < sizes_.positions; ++t) {
            const Features query(parts.q(t)), key(parts.k(t));
            const Given value(parts.v(t));
            Vec read[N];
            absorb<N>(sums.at, K, key.at, value.vec, query.at, read);
            for (int n = 0; n < N; ++n) z_sums.vec[n] = z_sums.vec[n] + key.vec[n];
            const float denominator = dot(query.vec, z_sums.vec) + sizes_.epsilon;
            denominators[(image_ * sizes_.positions + t) * sizes_.heads + head_] = denominator;
            T* const out = o + place(t);
            for (int n = 0; n < N; ++n) store_row(out + n * LANES, read[n] / denominator);
        }
        std::memcpy(kv + number() * K * K, sums.at, sizeof sums.at);
        for (int n = 0; n < N; ++n) store_row(z + number() * K + n * LANES, z_sums.vec[n]);
    }

    // From `grad_o: [B, T, H, K]` to `grad`, like `qkv`, and `of_images: [B, 3, H, K]`, its sums over
    // positions. `kv` and `z` hold the state before; `grad_kv` and `grad_z` hold the gradient of the
    // state after, and are left as that of the state before. `scratch`: a float a position.
    void backward(const T* qkv, const float* bias, const float* denominators, const T* grad_o,
                  const float* kv, const float* z, float* grad_kv, float* grad_z, T* grad,
                  float* of_images, float* scratch) const {
        const Parts parts(*this, qkv, bias);
        float* const of_image = of_images + image_ * 3 * width_ + head_ * K;
        queries(parts, denominators, grad_o, kv, z, grad, of_image, scratch);
        keys_and_values(parts, denominators, grad_o, scratch, grad_kv, grad_z, grad + width_,
                        of_image + width_);
    }

private:
    struct Square {
        alignas(64) float at[K * K];

        void take_transposed(const float* from) {
            for (int i = 0; i < K; ++i)
                for (int j = 0; j < K; ++j) at[j * K + i] = from[i * K + j];
        }
    };

    struct Row {
        Vec vec[N];
        explicit Row(const float* from) {
            for (int n = 0; n < N; ++n) vec[n] = load_row(from + n * LANES);
        }
    };

    // A vector both as registers and as numbers to broadcast.
    struct Numbers {
        Vec vec[N];
        alignas(64) float at[K];

        void keep() {
            for (int n = 0; n < N; ++n) store(at + n * LANES, vec[n]);
        }
    };

    // A head's part of a product at a position, and the bias that belongs to it.
    struct Part {
        const T* product;
        const float* bias;
        Vec at(int n) const { return load_row(product + n * LANES) + load_row(bias + n * LANES); }
    };
    struct Parts {
        Parts(const HeadPass& pass, const T* qkv, const float* bias)
            : pass_(pass), qkv_(qkv), bias_(bias + pass.head_ * K) {}
        Part q(int64_t t) const { return at(t, 0); }
        Part k(int64_t t) const { return at(t, pass_.width_); }
        Part v(int64_t t) const { return at(t, 2 * pass_.width_); }

    private:
        Part at(int64_t t, int64_t part) const {
            return {qkv_ + pass_.wide(t) + part, bias_ + part};
        }
        const HeadPass& pass_;
        const T* qkv_;
        const float* bias_;
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

    int64_t number() const { return image_ * sizes_.heads + head_; }
    // Where a position begins in `[B, T, H, K]`, and in `[B, T, 3, H, K]`.
    int64_t place(int64_t t) const { return (image_ * sizes_.positions + t) * width_ + head_ * K; }
    int64_t wide(int64_t t) const {
        return (image_ * sizes_.positions + t) * 3 * width_ + head_ * K;
    }
    float denominator(const float* denominators, int64_t t) const {
        return denominators[(image_ * sizes_.positions + t) * sizes_.heads + head_];
    }

    // Eq. 13, onwards in time: dφ(q) = S g + z g', with g and g' the gradients of numerator and
    // denominator; g' = -φ(q)·(S g) / d is left in `scratch`.
    void queries(const Parts& parts, const float* denominators, const T* grad_o, const float* kv,
                 const float* z, T* grad_q, float* of_image, float* scratch) const {
        Vec total[N] = {};
        Square sums;  // [V, K]
        sums.take_transposed(kv + number() * K * K);
        Row z_sums(z + number() * K);
        for (int64_t t = 0; t < sizes_.positions; ++t) {
            const Features query(parts.q(t)), key(parts.k(t));
            const Given value(parts.v(t));
            const float d = denominator(denominators, t);
            const Given g(grad_o + place(t), 1.0f / d);
            Vec grad[N];
            absorb<N>(sums.at, K, value.at, key.vec, g.at, grad);
            for (int n = 0; n < N; ++n) z_sums.vec[n] = z_sums.vec[n] + key.vec[n];
            scratch[t] = -dot(query.vec, grad) / d;
            T* const out = grad_q + wide(t);
            for (int n = 0; n < N; ++n) {
                const Vec whole =
                    fma(z_sums.vec[n], broadcast(scratch[t]), grad[n]) * query.slope(n);
                store_row(out + n * LANES, whole);
                total[n] = total[n] + whole;
            }
        }
        for (int n = 0; n < N; ++n) store_row(of_image + n * LANES, total[n]);
    }

    // Eq. 14 and 15, back in time: with R = Σ φ(q) gᵀ over the positions from here on,
    // dφ(k) = R v + Σ φ(q) g' and dv = Rᵀ φ(k).
    void keys_and_values(const Parts& parts, const float* denominators, const T* grad_o,
                         const float* scratch, float* grad_kv, float* grad_z, T* grad_k,
                         float* of_image) const {
        T* const grad_v = grad_k + width_;
        Vec total_k[N] = {}, total_v[N] = {};
        Square by_key, by_value;  // R: [K, V], and its transpose
        float* const mine = grad_kv + number() * K * K;
        std::memcpy(by_key.at, mine, sizeof by_key.at);
        by_value.take_transposed(mine);
        Row z_grad(grad_z + number() * K);
        for (int64_t t = sizes_.positions - 1; t >= 0; --t) {
            const Features query(parts.q(t)), key(parts.k(t));
            const Given value(parts.v(t));
            const Given g(grad_o + place(t),
                          1.0f / denominator(denominators, t));
            Vec of_value[N], of_key[N];
            absorb<N>(by_key.at, K, query.at, g.vec, key.at, of_value);
            absorb<N>(by_value.at, K, g.at, query.vec, value.at, of_key);
            T* const out_k = grad_k + wide(t);
            T* const out_v = grad_v + wide(t);
            for (int n = 0; n < N; ++n) {
                z_grad.vec[n] = fma(query.vec[n], broadcast(scratch[t]), z_grad.vec[n]);
                const Vec whole = (of_key[n] + z_grad.vec[n]) * key.slope(n);
                store_row(out_k + n * LANES, whole);
                store_row(out_v + n * LANES, of_value[n]);
                total_k[n] = total_k[n] + whole;
                total_v[n] = total_v[n] + of_value[n];
            }
        }
        for (int n = 0; n < N; ++n) {
            store_row(of_image + n * LANES, total_k[n]);
            store_row(of_image + width_ + n * LANES, total_v[n]);
        }
        std::memcpy(mine, by_key.at, sizeof by_key.at);
        for (int n = 0; n < N; ++n) store_row(grad_z + number() * K + n * LANES, z_grad.vec[n]);
    }

    const AttentionSizes& sizes_;
    int64_t image_, head_, width_;
};

}  // namespace scanline
