// Uniform random numbers of an image, as a function of its seed. Must agree with model/noise.py.
#pragma once

#include <cstdint>

namespace scanline {

// Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// As in numpy, block n of four words uses counter n + 1.
struct PhiloxBlock {
    uint64_t words[4];

    PhiloxBlock(uint64_t key0, uint64_t key1, uint64_t n) : words{n + 1, 0, 0, 0} {
        for (int round = 0; round < 10; ++round) {
            const Wide first = Wide{0xD2E7470EE14C6C93} * words[0];
            const Wide second = Wide{0xCA5A826395121157} * words[2];
            words[0] = static_cast<uint64_t>(second >> 64) ^ words[1] ^ key0;
            words[2] = static_cast<uint64_t>(first >> 64) ^ words[3] ^ key1;
            words[1] = static_cast<uint64_t>(second);
            words[3] = static_cast<uint64_t>(first);
            key0 += 0x9E3779B97F4A7C15;
            key1 += 0xBB67AE8584CAA73B;
        }
    }

private:
    __extension__ using Wide = unsigned __int128;
};

// Write uniforms `first` to `first + count - 1` of an image: (k + 1/2) / 2^23, where k is a word's
// upper 23 bits.
inline void uniforms(uint64_t seed, uint64_t particle, int first, int count, float* result) {
    for (int i = first; i < first + count;) {
        const PhiloxBlock block(seed, particle, static_cast<uint64_t>(i / 4));
        for (int lane = i % 4; lane < 4 && i < first + count; ++lane, ++i)
            *result++ = (static_cast<float>(block.words[lane] >> 41) + 0.5f) * 0x1p-23f;
    }
}

}  // namespace scanline
