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
    int64_t q_stride, k_stride, v_stride;  // elements from a position to the next
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
        : sizes_(sizes), image_(image), head_(head) {}

    // `o: [B, T, H, K]`, `denominators: [B, T, H]`; `kv: [B, H, K, K]` and `z: [B, H, K]` hold the
    // state before and are left as the one after.
    void forward(const T* q, const T* k, const T* v, float* kv, float* z, T* o,
                 float* denominators) const {
        Square sums;
        std::memcpy(sums.at, kv + number() * K * K, sizeof sums.at);
        Row z_sums(z + number() * K);
        for (int64_t t = 0; t < sizes_.positions; ++t) {
            const Features query(q + place(t, sizes_.q_stride)), key(k + place(t, sizes_.k_stride));
            Vec value[N], read[N];
            load_all(v + place(t, sizes_.v_stride), value);
            absorb<N>(sums.at, K, key.at, value, query.at, read);
            for (int n = 0; n < N; ++n) z_sums.vec[n] = z_sums.vec[n] + key.vec[n];
            const float denominator = dot(query.vec, z_sums.vec) + sizes_.epsilon;
            denominators[(image_ * sizes_.positions + t) * sizes_.heads + head_] = denominator;
            T* const out = o + place(t, sizes_.heads * K);
            for (int n = 0; n < N; ++n) store_row(out + n * LANES, read[n] / denominator);
        }
        std::memcpy(kv + number() * K * K, sums.at, sizeof sums.at);
        for (int n = 0; n < N; ++n) store_row(z + number() * K + n * LANES, z_sums.vec[n]);
    }

    // `grad_o` to `grad_q, grad_k, grad_v`, all `[B, T, H, K]`. `kv` and `z` hold the state before
    // and are lost; `grad_kv` and `grad_z` hold the gradient of the state after, and are left as
    // that of the state before. `scratch`: a float a position.
    void backward(const T* q, const T* k, const T* v, const float* denominators, const T* grad_o,
                  const float* kv, const float* z, float* grad_kv, float* grad_z, T* grad_q,
                  T* grad_k, T* grad_v, float* scratch) const {
        queries(q, k, v, denominators, grad_o, kv, z, grad_q, scratch);
        keys_and_values(q, k, v, denominators, grad_o, scratch, grad_kv, grad_z, grad_k, grad_v);
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

    struct Features : Numbers {
        explicit Features(const T* from) {
            for (int n = 0; n < N; ++n) {
                const Vec x = load_row(from + n * LANES);
                // `max` and `min` would turn what is no number into one.
                this->vec[n] = select((VecInt)(x == x), feature_map(x), x);
            }
            this->keep();
        }
        // φ'(x) is 1 for x > 0 and e^x = φ(x) elsewhere.
        Vec slope(int n) const { return min(this->vec[n], broadcast(1.0f)); }
    };

    struct Given : Numbers {
        explicit Given(const T* from, float scale = 1.0f) {
            for (int n = 0; n < N; ++n) this->vec[n] = load_row(from + n * LANES) * scale;
            this->keep();
        }
    };

    static void load_all(const T* from, Vec (&to)[N]) {
        for (int n = 0; n < N; ++n) to[n] = load_row(from + n * LANES);
    }

    int64_t number() const { return image_ * sizes_.heads + head_; }
    int64_t place(int64_t t, int64_t stride) const {
        return (image_ * sizes_.positions + t) * stride + head_ * K;
    }
    float denominator(const float* denominators, int64_t t) const {
        return denominators[(image_ * sizes_.positions + t) * sizes_.heads + head_];
    }

    // Eq. 13, onwards in time: dφ(q) = S g + z g', with g and g' the gradients of numerator and
    // denominator; g' = -φ(q)·(S g) / d is left in `scratch`.
    void queries(const T* q, const T* k, const T* v, const float* denominators, const T* grad_o,
                 const float* kv, const float* z, T* grad_q, float* scratch) const {
        Square sums;  // [V, K]
        sums.take_transposed(kv + number() * K * K);
        Row z_sums(z + number() * K);
        for (int64_t t = 0; t < sizes_.positions; ++t) {
            const Features query(q + place(t, sizes_.q_stride)), key(k + place(t, sizes_.k_stride));
            const Given value(v + place(t, sizes_.v_stride));
            const float d = denominator(denominators, t);
            const Given g(grad_o + place(t, sizes_.heads * K), 1.0f / d);
            Vec grad[N];
            absorb<N>(sums.at, K, value.at, key.vec, g.at, grad);
            for (int n = 0; n < N; ++n) z_sums.vec[n] = z_sums.vec[n] + key.vec[n];
            scratch[t] = -dot(query.vec, grad) / d;
            T* const out = grad_q + place(t, sizes_.heads * K);
            for (int n = 0; n < N; ++n) {
                const Vec whole = fma(z_sums.vec[n], broadcast(scratch[t]), grad[n]);
                store_row(out + n * LANES, whole * query.slope(n));
            }
        }
    }

    // Eq. 14 and 15, back in time: with R = Σ φ(q) gᵀ over the positions from here on,
    // dφ(k) = R v + Σ φ(q) g' and dv = Rᵀ φ(k).
    void keys_and_values(const T* q, const T* k, const T* v, const float* denominators,
                         const T* grad_o, const float* scratch, float* grad_kv, float* grad_z,
                         T* grad_k, T* grad_v) const {
        Square by_key, by_value;  // R: [K, V], and its transpose
        float* const mine = grad_kv + number() * K * K;
        std::memcpy(by_key.at, mine, sizeof by_key.at);
        by_value.take_transposed(mine);
        Row z_grad(grad_z + number() * K);
        for (int64_t t = sizes_.positions - 1; t >= 0; --t) {
            const Features query(q + place(t, sizes_.q_stride)), key(k + place(t, sizes_.k_stride));
            const Given value(v + place(t, sizes_.v_stride));
            const Given g(grad_o + place(t, sizes_.heads * K),
                          1.0f / denominator(denominators, t));
            Vec of_value[N], of_key[N];
            absorb<N>(by_key.at, K, query.at, g.vec, key.at, of_value);
            absorb<N>(by_value.at, K, g.at, query.vec, value.at, of_key);
            T* const out_k = grad_k + place(t, sizes_.heads * K);
            T* const out_v = grad_v + place(t, sizes_.heads * K);
            for (int n = 0; n < N; ++n) {
                z_grad.vec[n] = fma(query.vec[n], broadcast(scratch[t]), z_grad.vec[n]);
                store_row(out_k + n * LANES, (of_key[n] + z_grad.vec[n]) * key.slope(n));
                store_row(out_v + n * LANES, of_value[n]);
            }
        }
        std::memcpy(mine, by_key.at, sizeof by_key.at);
        for (int n = 0; n < N; ++n) store_row(grad_z + number() * K + n * LANES, z_grad.vec[n]);
    }

    const AttentionSizes& sizes_;
    int64_t image_, head_;
};

}  // namespace scanline
