// Uniform random numbers of an image, as defined by `pixel_noise` in model/noise.py.

// Block `n` of an image's random words, four words of Philox 4x64-10.
struct PhiloxBlock {
    u64 words[4];

    DEVICE PhiloxBlock(u64 seed, u64 particle, u64 n) {
        u64 c0 = n + 1, c1 = 0, c2 = 0, c3 = 0, k0 = seed, k1 = particle;
#pragma unroll 1
        for (int round = 0; round < 10; round++) {
            const u64 low0 = c0 * 0xD2E7470EE14C6C93ull, high0 = mul_hi(c0, 0xD2E7470EE14C6C93ull);
            const u64 low1 = c2 * 0xCA5A826395121157ull, high1 = mul_hi(c2, 0xCA5A826395121157ull);
            c0 = high1 ^ c1 ^ k0, c2 = high0 ^ c3 ^ k1;
            c1 = low1, c3 = low0;
            k0 += 0x9E3779B97F4A7C15ull, k1 += 0xBB67AE8584CAA73Bull;
        }
        words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
    }

    // Return word `i` of the sequence, which must be in this block, as a number in (0, 1).
    DEVICE float uniform(u64 i) const {
        const u64 lower = i % 2 ? words[1] : words[0], upper = i % 2 ? words[3] : words[2];
        const u64 word = i % 4 < 2 ? lower : upper;
        return ((float)(int)(word >> 41) + 0.5f) * (1.0f / 8388608.0f);
    }
};

// Compute the uniforms of step t: for a mixture, the component's first, then one per channel.
DEVICE void uniforms(float (&us)[DRAWS], u64 seed, u64 particle, u64 t) {
    const u64 first = t * DRAWS;
    const PhiloxBlock block(seed, particle, first / 4);
#pragma unroll
    for (int i = 0; i < DRAWS; i++) {
        const u64 at = first + i;
        const bool in_block = 4 % DRAWS == 0 || at / 4 == first / 4;
        us[i] = in_block ? block.uniform(at) : PhiloxBlock(seed, particle, at / 4).uniform(at);
    }
}
