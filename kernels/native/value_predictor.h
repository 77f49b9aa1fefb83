// What the next pixel may be, before the network says it: learned from the pixels drawn so far, as a
// processor learns which way branches go.
//
// A guess decides nothing. It only lets the network compute the steps after it in the same pass, and
// these count where it was right; so the pixels are the same whatever is guessed.
#pragma once

#include <cstring>
#include <vector>

#include "distribution.h"
#include "weights.h"

namespace scanline {

class ValuePredictor {
public:
    explicit ValuePredictor(const Config& c)
        : width_(c.width), channels_(c.channels), entries_(ENTRIES) {}

    struct Guess {
        uint8_t values[MAX_CHANNELS];
        uint8_t trust;  // how often it was right lately, of 255
    };

    // The guess for a pixel of a canvas [T, C], by the four neighbours decided before it.
    const Guess& at(const uint8_t* canvas, int pixel) const { return entries_[place(canvas, pixel)]; }

    // Learn what a pixel came out as.
    void learn(const uint8_t* canvas, int pixel) {
        Guess& guess = entries_[place(canvas, pixel)];
        const uint8_t* const values = canvas + pixel * channels_;
        const size_t size = static_cast<size_t>(channels_);
        if (std::memcmp(guess.values, values, size) == 0) {
            guess.trust = static_cast<uint8_t>(guess.trust + (255 - guess.trust + 7) / 8);
        } else {
            guess.trust = static_cast<uint8_t>(guess.trust - guess.trust / 4);
            if (guess.trust >= RELEARN) return;
            std::memcpy(guess.values, values, size);
            guess.trust = RELEARN;
        }
    }

private:
    static constexpr size_t ENTRIES = 4096;
    static constexpr uint8_t RELEARN = 64;  // below it another value takes the place

    size_t place(const uint8_t* canvas, int pixel) const {
        constexpr int SEEN[][2] = {{0, -1}, {-1, -1}, {-1, 0}, {-1, 1}};
        const int row = pixel / width_, column = pixel % width_;
        uint64_t hash = 0;
        for (const auto& offset : SEEN) {
            const int r = row + offset[0], c = column + offset[1];
            const bool inside = r >= 0 && c >= 0 && c < width_;
            for (int channel = 0; channel < channels_; ++channel) {
                const int value = inside ? canvas[(r * width_ + c) * channels_ + channel] : 0;
                hash = (hash + static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
            }
        }
        return hash >> 52;
    }

    const int width_, channels_;
    std::vector<Guess> entries_;
};

}  // namespace scanline
