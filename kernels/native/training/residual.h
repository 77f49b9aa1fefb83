// What stands between two products of a layer, in one pass over memory: what the last one gave is
// added to the stream, the sum is normalised, and that passes the short convolution. And back.
//
// A row of an image at a time: its places, normalised, and those of the row above stay in the cache.
#pragma once

#include <algorithm>

#include "short_conv.h"

namespace scanline {

// Without a convolution `convolved` is 0, and `columns` says how many places make a piece.
struct ResidualSizes {
    int64_t images, positions, features, columns, stride, convolved;
    float epsilon;
};

// An image's own sums of the parameters' gradients: `[8, D]`.
constexpr int BIAS = 0, NORM_WEIGHT = 1, NORM_BIAS = 2, CONV_WEIGHT = 3;
constexpr int PARAMETERS = CONV_WEIGHT + TAPS;

// One image. `T` is the type of what is added and of what comes out, the stream is floats.
template <typename T>
class ResidualPass {
public:
    ResidualPass(const ResidualSizes& sizes, int64_t image)
        : sizes_(sizes), D_(sizes.features), first_(image * sizes.positions * D_),
          row_(sizes.columns * D_) {}

    // Floats of memory that each way needs: some rows of an image.
    static int64_t scratch_forward(const ResidualSizes& s) { return 2 * s.columns * s.features; }
    static int64_t scratch_backward(const ResidualSizes& s) { return 4 * s.columns * s.features; }

    // How many rows of places an image has.
    static int64_t rows_of(const ResidualSizes& s) {
        return (s.positions + s.columns - 1) / s.columns;
    }

    // Rows `first` to `last`. `x, sum: [B, T, D]` float32; `added, y: [B, T, D]`; `bias: [D]`, of what is
    // added. Where nothing is, `sum` is not touched.
    void forward(int64_t first, int64_t last, const float* x, const T* added, const float* bias,
                 const float* norm_weight, const float* norm_bias, const float* conv_weight,
                 float* sum, T* y, float* rows) const {
        ImageRow<float> above;
        // The row above the first is computed once more: another thread may have it.
        for (int64_t r = sizes_.convolved && first > 0 ? first - 1 : first; r < last; ++r) {
            const int64_t t = r * sizes_.columns, at = first_ + t * D_;
            const int64_t count = std::min(sizes_.columns, sizes_.positions - t);
            float* const mine = rows + r % 2 * row_;  // normalised; the other is the one above
            for (int64_t c = 0; c < count; ++c) {
                const int64_t place = at + c * D_;
                float* const total = r < first ? mine + c * D_ : sum + place;
                if (added)
                    for (int64_t d = 0; d < D_; d += LANES)
                        store_row(total + d, load_row(x + place + d) + load_row(bias + d) +
                                                 load_row(added + place + d));
                const float* const from = added ? total : x + place;
                const Moments moments = moments_of(from);
                const auto put = [&](auto* to) {
                    for (int64_t d = 0; d < D_; d += LANES)
                        store_row(to + d, fma(moments.normal(load_row(from + d)),
                                              load_row(norm_weight + d), load_row(norm_bias + d)));
                };
                if (sizes_.convolved) put(mine + c * D_);
                else put(y + place);
            }
            const ImageRow<float> here{mine, count};
            if (sizes_.convolved && r >= first)
                convolve_row<1>(here, above, D_, sizes_.stride, conv_weight, y + at);
            above = here;
        }
    }

    // From the gradients of the sum (or null) and of y to that of both that were added: `grad`
    // float32, and `grad_added` like y (or null). `of_image: [8, D]`, zeroed.
    void backward(const float* grad_sum, const T* grad_y, const float* sum, const float* norm_weight,
                  const float* norm_bias, const float* conv_weight, float* grad, T* grad_added,
                  float* of_image, float* rows) const {
        float *const normal = rows + 2 * row_, *const of_rows = rows + 3 * row_;
        ImageRow<float> above;
        for (int64_t t = 0, r = 0; t < sizes_.positions; t += sizes_.columns, ++r) {
            const int64_t count = std::min(sizes_.columns, sizes_.positions - t), at = first_ + t * D_;
            const int64_t below = std::min(sizes_.columns, sizes_.positions - t - count);
            const ImageRow<T> grad_here{grad_y + at, count};
            float* const mine = rows + r % 2 * row_;  // normalised; the other is the one above
            if (sizes_.convolved) {
                const ImageRow<T> grad_below{grad_y + at + count * D_, below};
                convolve_row<-1>(grad_here, grad_below, D_, sizes_.stride, conv_weight, of_rows);
            }
            for (int64_t c = 0; c < count; ++c) {
                const int64_t place = at + c * D_;
                float* const n = normal + c * D_;
                const Moments moments = moments_of(sum + place);
                for (int64_t d = 0; d < D_; d += LANES) {
                    const Vec x = moments.normal(load_row(sum + place + d));
                    store_row(n + d, x);
                    if (sizes_.convolved)
                        store_row(mine + c * D_ + d,
                                  fma(x, load_row(norm_weight + d), load_row(norm_bias + d)));
                }
                const auto to = [&](const auto* g) {
                    through_norm(g, n, moments.scale, norm_weight, grad_sum ? grad_sum + place : nullptr,
                                 grad + place, grad_added ? grad_added + place : nullptr, of_image);
                };
                if (sizes_.convolved) to(of_rows + c * D_);
                else to(grad_y + place);
            }
            const ImageRow<float> here{mine, count};
            if (sizes_.convolved)
                weigh_row(grad_here, here, above, D_, sizes_.stride, of_image + CONV_WEIGHT * D_);
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
        const Vec mean = broadcast(scanline::sum(total) / size);
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec centred = load_row(x + d) - mean;
            squares = fma(centred, centred, squares);
        }
        return {mean, broadcast(1.0f / std::sqrt(scanline::sum(squares) / size + sizes_.epsilon))};
    }

    // dx = (w g - mean(w g) - n mean(w g n)) / σ, for one place.
    template <typename G>
    void through_norm(const G* g, const float* n, Vec scale, const float* weight,
                      const float* grad_sum, float* grad, T* grad_added, float* of_image) const {
        float* const of_weight = of_image + NORM_WEIGHT * D_;
        float* const of_norm_bias = of_image + NORM_BIAS * D_;
        float* const of_bias = of_image + BIAS * D_;
        Vec total = {}, along = {};
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec given = load_row(g + d), x = load_row(n + d);
            const Vec weighed = given * load_row(weight + d);
            total = total + weighed;
            along = fma(weighed, x, along);
            store_row(of_weight + d, fma(given, x, load_row(of_weight + d)));
            store_row(of_norm_bias + d, given + load_row(of_norm_bias + d));
        }
        const float size = static_cast<float>(D_);
        const Vec mean = broadcast(scanline::sum(total) / size);
        const Vec part = broadcast(scanline::sum(along) / size);
        for (int64_t d = 0; d < D_; d += LANES) {
            const Vec weighed = load_row(g + d) * load_row(weight + d);
            Vec whole = (weighed - mean - load_row(n + d) * part) * scale;
            if (grad_sum) whole = whole + load_row(grad_sum + d);
            store_row(grad + d, whole);
            store_row(of_bias + d, whole + load_row(of_bias + d));
            if (grad_added) store_row(grad_added + d, whole);
        }
    }

    const ResidualSizes& sizes_;
    int64_t D_, first_, row_;
};

}  // namespace scanline
