// Residual addition, layer norm and short convolution in one pass over memory, and its gradient.
//
// Works on one image row at a time, so that its normalised positions and those of the row above stay in
// the cache.
#pragma once

#include <algorithm>
#include <cmath>

#include "short_conv.h"

namespace scanline {

// Without a convolution `convolved` is 0 and `columns` is the number of positions per block.
struct ResidualSizes {
    int64_t images, positions, features, columns, convolved;
    float epsilon;
};

// Rows of an image's gradients of the parameters: `[8, D]`.
constexpr int BIAS = 0, NORM_WEIGHT = 1, NORM_BIAS = 2, CONV_WEIGHT = 3;
constexpr int PARAMETERS = CONV_WEIGHT + TAPS;

// One image. `T` is the type of the added tensor and of the output; the residual stream is float32.
template <typename T>
class ResidualPass {
public:
    ResidualPass(const ResidualSizes& sizes, int64_t image)
        : sizes_(sizes), D_(sizes.features), first_(image * sizes.positions * D_),
          row_(sizes.columns * D_) {}

    // Floats of scratch memory for each direction: a few rows of an image.
    static int64_t scratch_forward(const ResidualSizes& s) { return 2 * s.columns * s.features; }
    static int64_t scratch_backward(const ResidualSizes& s) { return 4 * s.columns * s.features; }

    // Number of rows of an image.
    static int64_t rows_of(const ResidualSizes& s) {
        return (s.positions + s.columns - 1) / s.columns;
    }

    // Compute rows `first` to `last` - 1. `x, sum: [B, T, D]` float32; `added, y: [B, T, D]`; `bias:
    // [D]` is added with `added`. If `added` is null, `sum` is not written.
    void forward(int64_t first, int64_t last, const float* x, const T* added, const float* bias,
                 const float* norm_weight, const float* norm_bias, const float* conv_weight,
                 float* sum, T* y, float* rows) const {
        ImageRow<float> above;
        // Compute the row above the first again, because another thread may own it.
        for (int64_t r = sizes_.convolved && first > 0 ? first - 1 : first; r < last; ++r) {
            const int64_t t = r * sizes_.columns, start = first_ + t * D_;
            const int64_t count = std::min(sizes_.columns, sizes_.positions - t);
            float* const current = rows + r % 2 * row_;  // normalised; the other half: the row above
            for (int64_t c = 0; c < count; ++c) {
                const int64_t index = start + c * D_;
                float* const total = r < first ? current + c * D_ : sum + index;
                if (added)
                    for (int64_t d = 0; d < D_; d += LANES)
                        store_row(total + d, load_row(x + index + d) + load_row(bias + d) +
                                  load_row(added + index + d));
                const float* const from = added ? total : x + index;
                const Moments moments = moments_of(from);
                const auto put = [&](auto* to) {
                    for (int64_t d = 0; d < D_; d += LANES)
                        store_row(to + d, fma(moments.normal(load_row(from + d)),
                                              load_row(norm_weight + d), load_row(norm_bias + d)));
                };
                if (sizes_.convolved) put(current + c * D_);
                else put(y + index);
            }
            const ImageRow<float> here{current, count};
            if (sizes_.convolved && r >= first)
                convolve_row<1>(here, above, D_, conv_weight, y + start);
            above = here;
        }
    }

    // From the gradients of the sum (or null) and of y, compute that of both summands: `grad` in
    // float32 and `grad_added` in y's type (or null). `parameter_grads: [8, D]` is zeroed by the
    // caller.
    void backward(const float* grad_sum, const T* grad_y, const float* sum, const float* norm_weight,
                  const float* norm_bias, const float* conv_weight, float* grad, T* grad_added,
                  float* parameter_grads, float* rows) const {
        float *const normal = rows + 2 * row_, *const grad_rows = rows + 3 * row_;
        ImageRow<float> above;
        for (int64_t t = 0, r = 0; t < sizes_.positions; t += sizes_.columns, ++r) {
            const int64_t start = first_ + t * D_;
            const int64_t count = std::min(sizes_.columns, sizes_.positions - t);
            const int64_t below = std::min(sizes_.columns, sizes_.positions - t - count);
            const ImageRow<T> grad_here{grad_y + start, count};
            float* const current = rows + r % 2 * row_;  // normalised; the other half: the row above
            if (sizes_.convolved) {
                const ImageRow<T> grad_below{grad_y + start + count * D_, below};
                convolve_row<-1>(grad_here, grad_below, D_, conv_weight, grad_rows);
            }
            for (int64_t c = 0; c < count; ++c) {
                const int64_t index = start + c * D_;
                float* const n = normal + c * D_;
                const Moments moments = moments_of(sum + index);
                for (int64_t d = 0; d < D_; d += LANES) {
                    const Vec x = moments.normal(load_row(sum + index + d));
                    store_row(n + d, x);
                    if (sizes_.convolved)
                        store_row(current + c * D_ + d,
                                  fma(x, load_row(norm_weight + d), load_row(norm_bias + d)));
                }
                const auto to = [&](const auto* g) {
                    norm_backward(g, n, moments.scale, norm_weight,
                                  grad_sum ? grad_sum + index : nullptr, grad + index,
                                  grad_added ? grad_added + index : nullptr, parameter_grads);
                };
                if (sizes_.convolved) to(grad_rows + c * D_);
                else to(grad_y + index);
            }
            const ImageRow<float> here{current, count};
            if (sizes_.convolved)
                add_weight_gradient(grad_here, here, above, D_, parameter_grads + CONV_WEIGHT * D_);
            above = here;
        }
    }

private:
    struct Moments {
        Vec mean, scale;
        Vec normal(Vec x) const { return (x - mean) * scale; }
    };

    Moments moments_of(const float* x) const {
        Vec total = {}, squares = {};
        for (int64_t d = 0; d < D_; d += LANES) total = total + load_row(x + d);
        const float size = static_cast<float>(D_);
        const Vec mean = broadcast(horizontal_sum(total) / size);
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec centred = load_row(x + d) - mean;
            squares = fma(centred, centred, squares);
        }
        return {mean, broadcast(1.0f / std::sqrt(horizontal_sum(squares) / size + sizes_.epsilon))};
    }

    // Backward pass of layer norm at one position: dx = (w g - mean(w g) - n mean(w g n)) / σ.
    template <typename G>
    void norm_backward(const G* g, const float* n, Vec scale, const float* weight,
                       const float* grad_sum, float* grad, T* grad_added,
                       float* parameter_grads) const {
        float* const grad_weight = parameter_grads + NORM_WEIGHT * D_;
        float* const grad_norm_bias = parameter_grads + NORM_BIAS * D_;
        float* const grad_bias = parameter_grads + BIAS * D_;
        Vec total = {}, projection = {};
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec grad_y = load_row(g + d), x = load_row(n + d);
            const Vec weighted = grad_y * load_row(weight + d);
            total = total + weighted;
            projection = fma(weighted, x, projection);
            store_row(grad_weight + d, fma(grad_y, x, load_row(grad_weight + d)));
            store_row(grad_norm_bias + d, grad_y + load_row(grad_norm_bias + d));
        }
        const float size = static_cast<float>(D_);
        const Vec mean = broadcast(horizontal_sum(total) / size);
        const Vec part = broadcast(horizontal_sum(projection) / size);
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec weighted = load_row(g + d) * load_row(weight + d);
            Vec result = (weighted - mean - load_row(n + d) * part) * scale;
            if (grad_sum) result = result + load_row(grad_sum + d);
            store_row(grad + d, result);
            store_row(grad_bias + d, result + load_row(grad_bias + d));
            if (grad_added) store_row(grad_added + d, result);
        }
    }

    const ResidualSizes& sizes_;
    int64_t D_, first_, row_;
};

}  // namespace scanline
