// Compares `fma` of vector.h with the C library's. Prints the first differences; fails if there are any.
#include <cmath>
#include <cstdio>
#include <random>

#include "../../../kernels/native/vector.h"

namespace {

using namespace scanline;

std::mt19937_64 generator(1);

// A random number whose exponent is one of `count` from `first`. The fraction of a `special` one is next to
// a power of two or halfway to it, so that sums are often almost halfway between two numbers.
float random_float(uint32_t first, uint32_t count, bool special) {
    constexpr uint32_t FRACTIONS[] = {0, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7ffffe, 0x7fffff};
    const auto word = static_cast<uint32_t>(generator());
    const auto exponent = first + static_cast<uint32_t>(generator() % count);
    const uint32_t fraction = special ? FRACTIONS[word % 8] : word & 0x7fffff;
    const uint32_t bits = (word & 0x80000000) | exponent << 23 | fraction;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

bool same(float x, float y) {
    return (std::isnan(x) && std::isnan(y)) || !std::memcmp(&x, &y, sizeof x);
}

}  // namespace

int main() {
    // The first exponent and number of exponents of the factors and of the addend: any (with infinities
    // and NaN), usual ones, addends of 24 bits more or less, and denormal results.
    constexpr uint32_t RANGES[][4] = {
        {0, 256, 0, 256}, {119, 16, 119, 16}, {115, 4, 126, 10}, {115, 4, 76, 10}, {50, 5, 0, 3}};
    long differences = 0;
    for (int i = 0; i < 1'000'000; ++i) {
        const auto& [factors, factor_count, addends, addend_count] = RANGES[i % 5];
        const bool special = i % 2;
        alignas(64) float a[LANES], b[LANES], c[LANES], results[LANES];
        for (int k = 0; k < LANES; ++k) {
            a[k] = random_float(factors, factor_count, special);
            b[k] = random_float(factors, factor_count, special);
            c[k] = generator() % 8 ? random_float(addends, addend_count, special) : -(a[k] * b[k]);
        }
        store(results, fma(load(a), load(b), load(c)));
        for (int k = 0; k < LANES; ++k) {
            const float expected = std::fma(a[k], b[k], c[k]);
            if (same(results[k], expected)) continue;
            if (differences++ < 5)
                std::printf("%a * %a + %a: %a, not %a\n", a[k], b[k], c[k], results[k], expected);
        }
    }
    return differences != 0;
}
