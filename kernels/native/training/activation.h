// GELU of a linear map's output plus bias, and its gradient.
#pragma once

#include "load_store.h"

namespace scanline {

// Φ(x) - ½ and GELU'(x) - ½ are odd functions. Both are approximated to about 1e-6 by x times a minimax
// polynomial in t = 2 (x / 4.5)² - 1 on [-4.5, 4.5], and by the value at the end of the interval
// outside.
constexpr float LIMIT = 4.5f;
template <int N>
inline Vec odd_polynomial(Vec x, const float (&coefficients)[N]) {
    x = min(max(x, broadcast(-LIMIT)), broadcast(LIMIT));
    const Vec t = fma(x, x * (2.0f / (LIMIT * LIMIT)), broadcast(-1.0f));
    Vec p = broadcast(coefficients[0]);
    for (int i = 1; i < N; ++i) p = fma(p, t, broadcast(coefficients[i]));
    return x * p;
}

constexpr float NORMAL_CDF[] = {0.000819327601f, -0.00225916295f, 0.00307924533f, -0.00541324727f,
    0.0111570181f, -0.0189148318f, 0.028372081f, -0.0401344746f, 0.0546917506f, -0.0771922842f,
    0.156905085f};
constexpr float GELU_SLOPE[] = {0.00215613213f, -0.00615488924f, 0.00800403859f, -0.0137096466f,
    0.0300309565f, -0.0505920276f, 0.070424363f, -0.088102445f, 0.097398594f, -0.0948467329f,
    0.0870598927f, -0.0899719298f, 0.159430131f};

// Set the result to 0 for x far below 0, where GELU and its derivative vanish.
inline Vec zero_tail(Vec x, Vec y) { return select((VecInt)(x < -LIMIT), Vec{}, y); }

// GELU and its derivative Φ(x) + x φ(x), to the accuracy of the element type T.
template <typename T>
inline Vec gelu_at(Vec x) {
    if constexpr (sizeof(T) == 4) return gelu(x);
    return zero_tail(x, x * (odd_polynomial(x, NORMAL_CDF) + 0.5f));
}
template <typename T>
inline Vec gelu_slope(Vec x) {
    if constexpr (sizeof(T) == 4) {
        const Vec density = exp(x * x * -0.5f) * 0.398942280401432678f;
        return fma(x, density, 0.5f * (1.0f + erf(x * 0.707106781186547524f)));
    }
    return zero_tail(x, odd_polynomial(x, GELU_SLOPE) + 0.5f);
}

// y = GELU(x + bias). `x, y: [rows, features]`, `bias: [features]`.
template <typename T>
inline void bias_gelu_rows(const T* x, const float* bias, int64_t rows, int64_t features, T* y) {
    for (int64_t r = 0; r < rows; ++r, x += features, y += features)
        for (int64_t f = 0; f < features; f += LANES)
            store_row(y + f, gelu_at<T>(load_row(x + f) + load_row(bias + f)));
}

// Gradient of `bias_gelu_rows`. The sum over these rows is added to `grad_bias: [features]`.
template <typename T>
inline void bias_gelu_backward_rows(const T* grad, const T* x, const float* bias, int64_t rows,
                                    int64_t features, T* grad_x, float* grad_bias) {
    for (int64_t r = 0; r < rows; ++r, grad += features, x += features, grad_x += features)
        for (int64_t f = 0; f < features; f += LANES) {
            const Vec slope = gelu_slope<T>(load_row(x + f) + load_row(bias + f));
            const Vec product = slope * load_row(grad + f);
            store_row(grad_x + f, product);
            store_row(grad_bias + f, load_row(grad_bias + f) + product);
        }
}

}  // namespace scanline
