// Elementary functions of vectors and numbers, from the operations of vector.h alone: the C library's
// functions differ between systems.
#pragma once

#include "vector.h"

namespace scanline {

// e^x to about 1 ulp: 0 below the smallest normal number, clamped to e^88.37 above.
inline Vec exp(Vec x) {
    const VecInt tiny = (VecInt)(x < -87.33f);
    x = min(max(x, broadcast(-87.33f)), broadcast(88.37f));
    // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits.
    const Vec shift = broadcast(12582912.0f);
    const Vec shifted = fma(x, broadcast(1.44269504088896341f), shift);
    const Vec n = shifted - shift;
    Vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);  // Cephes expf
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    const VecInt scaled = (VecInt)p + ((VecInt)shifted << 23);
    return (Vec)(scaled & ~tiny);
}

// ln x to about 1 ulp, for normal x > 0.
inline Vec log(Vec x) {
    const VecInt root_half = VecInt{} + 0x3f3504f3;
    const VecInt e = ((VecInt)x - root_half) >> 23;
    const Vec m = (Vec)((VecInt)x - (e << 23)) - 1.0f;  // mantissa in [√½, √2), less 1
    const Vec exponent = __builtin_convertvector(e, Vec);
    const Vec z = m * m;
    Vec p = broadcast(7.0376836292e-2f);  // Cephes logf
    p = fma(p, m, broadcast(-1.1514610310e-1f));
    p = fma(p, m, broadcast(1.1676998740e-1f));
    p = fma(p, m, broadcast(-1.2420140846e-1f));
    p = fma(p, m, broadcast(1.4249322787e-1f));
    p = fma(p, m, broadcast(-1.6668057665e-1f));
    p = fma(p, m, broadcast(2.0000714765e-1f));
    p = fma(p, m, broadcast(-2.4999993993e-1f));
    p = fma(p, m, broadcast(3.3333331174e-1f));
    Vec y = p * m * z;
    y = fma(exponent, broadcast(-2.12194440e-4f), y);
    y = fma(z, broadcast(-0.5f), y);
    return fma(exponent, broadcast(0.693359375f), m + y);
}

// ln(1 + x) for 0 ≤ x ≤ 1, accurate even if 1 + x rounds to 1 (Kahan's correction).
inline Vec log1p(Vec x) {
    const Vec u = x + 1.0f;
    const Vec rest = u - 1.0f;
    const VecInt lost = (VecInt)(rest == 0.0f);
    return select(lost, x, log(u) * x / select(lost, broadcast(1.0f), rest));
}

// ln(1 + e^x)
inline Vec softplus(Vec x) { return max(x, Vec{}) + log1p(exp(-absolute(x))); }

inline Vec tanh(Vec x) {
    const Vec e = exp(absolute(x) * -2.0f);
    const Vec magnitude = (1.0f - e) / (1.0f + e);
    return (Vec)((VecInt)magnitude | ((VecInt)x & INT32_MIN));
}

// erf to about 2 ulp: odd rational function on [-4, 4] (Eigen), ±1 outside.
inline Vec erf(Vec x) {
    x = min(max(x, broadcast(-4.0f)), broadcast(4.0f));
    const Vec z = x * x;
    Vec p = broadcast(-2.72614225801306e-10f);
    p = fma(p, z, broadcast(2.77068142495902e-08f));
    p = fma(p, z, broadcast(-2.10102402082508e-06f));
    p = fma(p, z, broadcast(-5.69250639462346e-05f));
    p = fma(p, z, broadcast(-7.34990630326855e-04f));
    p = fma(p, z, broadcast(-2.95459980854025e-03f));
    p = fma(p, z, broadcast(-1.60960333262415e-02f));
    Vec q = broadcast(-1.45660718464996e-05f);
    q = fma(q, z, broadcast(-2.13374055278905e-04f));
    q = fma(q, z, broadcast(-1.68282697438203e-03f));
    q = fma(q, z, broadcast(-7.37332916720468e-03f));
    q = fma(q, z, broadcast(-1.42647390514189e-02f));
    return x * p / q;
}

inline Vec gelu(Vec x) { return 0.5f * x * (1.0f + erf(x * 0.707106781186547524f)); }
inline Vec relu(Vec x) { return max(x, Vec{}); }

constexpr float ATTENTION_EPS = 1e-6f;  // ε in the denominator of linear attention
// φ(x) = elu(x) + 1 (eq. 7)
inline Vec feature_map(Vec x) { return max(x, Vec{}) + exp(min(x, Vec{})); }

// The same functions of one number.
inline float exp(float x) { return exp(broadcast(x))[0]; }
inline float log(float x) { return log(broadcast(x))[0]; }

}  // namespace scanline
