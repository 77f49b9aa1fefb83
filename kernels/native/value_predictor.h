// Predictor of the next pixel's values, learned from the pixels drawn so far, like a CPU's branch
// predictor.
//
// A prediction lets the network compute the following steps in the same pass, as in speculative
// decoding. They are discarded if the drawn value differs, so predictions affect speed only, never
// the drawn values.
#pragma once

#include <cstring>
#include <vector>

#include "abi.h"
#include "distribution.h"

namespace scanline {

class ValuePredictor {
public:
    explicit ValuePredictor(const Config& c)
        : width_(c.width), channels_(c.channels), entries_(ENTRIES) {}

    struct Prediction {
        uint8_t values[MAX_CHANNELS];
        uint8_t confidence;  // recent hit rate, 255 = always
    };

    // Predict a pixel of a canvas [T, C] from its four previously decided neighbours.
    const Prediction& predict(const uint8_t* canvas, int pixel) const {
        return entries_[index(canvas, pixel)];
    }

    // Update the entry of a pixel with the values drawn for it.
    void update(const uint8_t* canvas, int pixel) {
        Prediction& entry = entries_[index(canvas, pixel)];
        const uint8_t* const values = canvas + pixel * channels_;
        const size_t size = static_cast<size_t>(channels_);
        if (std::memcmp(entry.values, values, size) == 0) {
            entry.confidence =
                static_cast<uint8_t>(entry.confidence + (255 - entry.confidence + 7) / 8);
        } else {
            entry.confidence = static_cast<uint8_t>(entry.confidence - entry.confidence / 4);
            if (entry.confidence >= MIN_CONFIDENCE) return;
            std::memcpy(entry.values, values, size);
            entry.confidence = MIN_CONFIDENCE;
        }
    }

private:
    static constexpr size_t ENTRIES = 4096;
    static constexpr uint8_t MIN_CONFIDENCE = 64;  // an entry below this is replaced

    size_t index(const uint8_t* canvas, int pixel) const {
        constexpr int NEIGHBOURS[][2] = {{0, -1}, {-1, -1}, {-1, 0}, {-1, 1}};
        const int row = pixel / width_, column = pixel % width_;
        uint64_t hash = 0;
        for (const auto& offset : NEIGHBOURS) {
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
    std::vector<Prediction> entries_;
};

}  // namespace scanline
