// The uniforms that an image's seed decides. The definition is model/noise.py's.
#pragma once

#include <cstdint>

namespace scanline {

// Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as numpy
// counts: block n of four words has the counter n + 1.
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

// Uniforms first, first + 1, … of an image, (k + 1/2) / 2^23 of a word's upper bits.
inline void uniforms(uint64_t seed, uint64_t particle, int first, int count, float* result) {
    for (int i = first; i < first + count;) {
        const PhiloxBlock block(seed, particle, static_cast<uint64_t>(i / 4));
        for (int lane = i % 4; lane < 4 && i < first + count; ++lane, ++i)
            *result++ = (static_cast<float>(block.words[lane] >> 41) + 0.5f) * 0x1p-23f;
    }
}

}  // namespace scanline
