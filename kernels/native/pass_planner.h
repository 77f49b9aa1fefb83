// Which rows a team's next pass has, and what is kept of the last one.
//
// A pass takes each image one step on, or several: the value that a step decides may be known, and
// then the next step is computed in the same pass; or it is guessed, and the next step counts if the
// guess was right. Only the team's leader does this, between two passes.
#pragma once

#include "value_predictor.h"
#include "attention.h"
#include "team.h"

namespace scanline {

class PassPlanner {
public:
    // Of the images in `slots`, each up to its pixel in `ends`, with up to `ahead` rows an image in
    // a pass. A slot's twin follows it, where `twins` says that it may. `guesses` may be null.
    PassPlanner(const Config& config, const Arrays& arrays, const int* slots, const int* ends, int count,
            bool twins, int ahead, ValuePredictor* guesses)
        : config_(config), arrays_(arrays), pixels_(config.height * config.width),
          parts_(steps_per_pixel(config)), ahead_(ahead), guesses_(guesses) {
        for (int i = 0; i < count; ++i) {
            const int slot = slots[i];
            const int twin = twins && i + 1 < count && arrays.twin[slot] == slots[i + 1]
                                 ? slots[i + 1] : NONE;
            const int position = std::clamp(arrays.positions[slot], 0, pixels_);
            images_[count_++] = {slot, twin, i * ahead, position * parts_, ends[i] * parts_};
            if (twin != NONE) ++i;
        }
    }

    // Put the next pass together; it has no rows where all images have come to their ends.
    void plan(Pass& pass) {
        pass.row_count = pass.run_count = pass.decision_count = 0;
        for (int i = 0; i < count_; ++i) {
            Image& image = images_[i];
            if (image.step == 0 && image.end > 0 && config_.start_given) give_first(image);
            const int first = pass.row_count, late = image.late;
            image.rows = image.kept = image.late = 0;
            if (image.step < image.end) look_ahead(image);
            if (image.rows == 0 && late == 0) continue;
            image.decisions = pass.decision_count;
            add_run(pass, image.slot, image, late, image.place);
            if (image.twin != NONE) add_run(pass, image.twin, image, late, image.place + ahead_);
            for (int k = 0; k < image.rows; ++k) {
                Decision& decision = pass.decisions[pass.decision_count++];
                decision.row = pass.rows[first + k];
                decision.parameters = first + k;
                decision.unconditional = image.twin == NONE ? NONE : first + image.rows + k;
                std::copy_n(values(image.slot, decision.row.step), config_.step_channels,
                            decision.values);
            }
        }
    }

    // Let the images end early, at the next whole pixel.
    void stop() {
        for (int i = 0; i < count_; ++i)
            images_[i].end = std::min(images_[i].end, round_up(images_[i].step, parts_));
    }

    // Keep what the last pass decided: of each image the values up to the first that was not as
    // presumed, that one with them.
    void settle(const Pass& pass) {
        for (int i = 0; i < count_; ++i) {
            Image& image = images_[i];
            if (image.rows == 0) continue;
            int done = 0;
            for (bool as_presumed = true; as_presumed && done < image.rows; ++done)
                as_presumed = keep(image, pass.decisions[image.decisions + done]);
            for (int k = done; k + 1 < image.rows; ++k) forget(image, image.step + k);
            image.step += done;
            image.late = std::max(0, done - image.kept);
            arrays_.positions[image.slot] = image.step / parts_;
            if (image.twin != NONE) arrays_.positions[image.twin] = image.step / parts_;
        }
    }

private:
    static constexpr int NONE = -1;
    // A guess is worth a row where it, and those before it in the pass, hold so likely.
    static constexpr float WORTH = 0.5f;

    struct Image {
        int slot, twin, place;
        int step, end;                     // steps decided, and to be
        int rows = 0, kept = 0, late = 0;  // as a run's, of the pass at hand
        int decisions = 0;                 // its first
    };

    // Choose how many rows the image has in this pass, and write the guesses where they are seen.
    void look_ahead(Image& image) {
        float chance = 1.0f;
        image.rows = image.kept = 1;
        while (image.rows < ahead_ && image.step + image.rows < image.end) {
            const int step = image.step + image.rows - 1;  // the value that is to be presumed
            const bool known = arrays_.known[at(image.slot, 1) + static_cast<size_t>(step / parts_)];
            const bool sure = known && image.kept == image.rows;
            // From the first guess on, rows have to go over the state together with those before.
            if (!sure && image.rows >= TOGETHER) break;
            if (!known && !(guesses_ && guess(image, step, chance))) break;
            image.kept += sure;
            ++image.rows;
        }
    }

    bool guess(const Image& image, int step, float& chance) const {
        const uint8_t* const canvas = values(image.slot, 0);
        const int part = step % parts_, pixel = step / parts_;
        const ValuePredictor::Guess& guess = guesses_->at(canvas, pixel);
        chance *= static_cast<float>(guess.trust) / 256.0f;
        if (chance < WORTH) return false;
        // A pixel of which one channel is not as guessed will not be in the others.
        if (!std::equal(guess.values, guess.values + part, canvas + pixel * config_.channels))
            return false;
        put(image, step, guess.values + part);
        return true;
    }

    void add_run(Pass& pass, int slot, const Image& image, int late, int place) const {
        pass.runs[pass.run_count++] = {slot, pass.row_count, image.rows, image.kept, late, place};
        for (int k = 0; k < image.rows; ++k) pass.rows[pass.row_count++] = {slot, image.step + k};
    }

    // Returns whether the value is as the rows after presumed.
    bool keep(const Image& image, const Decision& decision) {
        const int step = decision.row.step, part = step % parts_;
        const size_t pixel = static_cast<size_t>(step / parts_);
        uint8_t* const canvas = values(image.slot, step);
        const bool as_presumed =
            std::equal(decision.values, decision.values + config_.step_channels, canvas);
        put(image, step, decision.values);
        float& bits = arrays_.bits[at(image.slot, 1) + pixel];
        bits = part ? bits + decision.bits : decision.bits;
        if (image.twin != NONE) arrays_.bits[at(image.twin, 1) + pixel] = bits;
        if (guesses_ && part + 1 == parts_ && !arrays_.known[at(image.slot, 1) + pixel])
            guesses_->learn(values(image.slot, 0), static_cast<int>(pixel));
        return as_presumed;
    }

    // Undecided values are 0, unless they are known.
    void forget(const Image& image, int step) const {
        constexpr uint8_t NOTHING_YET[MAX_CHANNELS] = {};
        if (!arrays_.known[at(image.slot, 1) + static_cast<size_t>(step / parts_)])
            put(image, step, NOTHING_YET);
    }

    // The first value of a network that never models it.
    void give_first(Image& image) const {
        const auto first = static_cast<uint8_t>(config_.first_value);
        if (!arrays_.known[at(image.slot, 1)]) put(image, 0, &first);
        image.step = 1;
        arrays_.positions[image.slot] = 1 / parts_;
        if (image.twin != NONE) arrays_.positions[image.twin] = 1 / parts_;
    }

    // An image's values are its twin's.
    void put(const Image& image, int step, const uint8_t* from) const {
        std::copy_n(from, config_.step_channels, values(image.slot, step));
        if (image.twin != NONE) std::copy_n(from, config_.step_channels, values(image.twin, step));
    }

    uint8_t* values(int slot, int step) const {
        return arrays_.canvas + at(slot, config_.channels) + step * config_.step_channels;
    }

    // Where a slot begins in an array of `each` values a pixel.
    size_t at(int slot, int each) const {
        return static_cast<size_t>(slot) * static_cast<size_t>(pixels_ * each);
    }

    const Config& config_;
    const Arrays& arrays_;
    const int pixels_, parts_, ahead_;
    ValuePredictor* const guesses_;
    Image images_[MAX_ROWS];
    int count_ = 0;
};

}  // namespace scanline
