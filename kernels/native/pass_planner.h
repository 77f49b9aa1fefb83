// Planner of a team's passes: chooses the rows of the next pass and commits the results of the last
// one.
//
// A pass advances each image by one or more steps. If the value that a step decides is already known,
// the next step is computed in the same pass. If it is predicted, the next step is computed as well,
// but counts only if the prediction was right. Only the team's leader runs the planner, between passes.
#pragma once

#include "attention.h"
#include "layers.h"
#include "team.h"

namespace scanline {

class PassPlanner {
public:
    // Plan for the images in `slots`, each until its pixel in `ends`, with up to `lookahead` rows per
    // image and pass. With `twins`, a slot's twin follows it in `slots`. `predictor` may be null.
    PassPlanner(const Config& config, const Arrays& arrays, const int* slots, const int* ends,
                int count, bool twins, int lookahead, ValuePredictor* predictor)
        : config_(config), arrays_(arrays), pixels_(config.height * config.width),
          steps_per_pixel_(steps_per_pixel(config)), lookahead_(lookahead), predictor_(predictor) {
        for (int i = 0; i < count; ++i) {
            const int slot = slots[i];
            const int twin = twins && i + 1 < count && arrays.twin[slot] == slots[i + 1]
                                 ? slots[i + 1] : NONE;
            const int position = std::clamp(arrays.positions[slot], 0, pixels_);
            images_[image_count_++] = {slot, twin, i * lookahead, position * steps_per_pixel_,
                                ends[i] * steps_per_pixel_};
            if (twin != NONE) ++i;
        }
    }

    // Fill `pass` with the next pass. It has no rows if all images have reached their ends.
    void plan(Pass& pass) {
        pass.row_count = pass.run_count = pass.decision_count = 0;
        for (int i = 0; i < image_count_; ++i) {
            Image& image = images_[i];
            if (image.step == 0 && image.end > 0 && config_.start_given) write_first_value(image);
            const int first = pass.row_count, pending = image.pending;
            image.rows = image.confirmed = image.pending = 0;
            if (image.step < image.end) choose_rows(image);
            if (image.rows == 0 && pending == 0) continue;
            image.decisions = pass.decision_count;
            add_run(pass, image.slot, image, pending, image.pending_row);
            if (image.twin != NONE)
                add_run(pass, image.twin, image, pending, image.pending_row + lookahead_);
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

    // End all images early, at their next whole pixel.
    void stop_early() {
        for (int i = 0; i < image_count_; ++i)
            images_[i].end = std::min(images_[i].end, round_up(images_[i].step, steps_per_pixel_));
    }

    // Commit what the last pass decided: each image's values up to and including the first that differs
    // from the assumed value.
    void commit(const Pass& pass) {
        for (int i = 0; i < image_count_; ++i) {
            Image& image = images_[i];
            if (image.rows == 0) continue;
            int done = 0;
            for (bool as_assumed = true; as_assumed && done < image.rows; ++done)
                as_assumed = commit_decision(image, pass.decisions[image.decisions + done]);
            for (int k = done; k + 1 < image.rows; ++k) clear_value(image, image.step + k);
            image.step += done;
            image.pending = std::max(0, done - image.confirmed);
            set_position(image);
        }
    }

private:
    static constexpr int NONE = -1;
    // A row with predicted inputs is computed if the probability that all of them are right is at least
    // this.
    static constexpr float MIN_PROBABILITY = 0.5f;

    struct Image {
        int slot, twin, pending_row;
        int step, end;                              // number of steps decided, and to decide
        int rows = 0, confirmed = 0, pending = 0;   // of the current pass, see Run
        int decisions = 0;                          // index of its first decision
    };

    // Choose the image's number of rows in this pass and write the predicted values to the canvas.
    void choose_rows(Image& image) {
        float probability = 1.0f;
        image.rows = image.confirmed = 1;
        while (image.rows < lookahead_ && image.step + image.rows < image.end) {
            const int step = image.step + image.rows - 1;  // the step whose value must be assumed
            const bool known = arrays_.known[offset(image.slot, 1) + pixel_of(step)];
            const bool confirmed = known && image.confirmed == image.rows;
            // Rows from the first prediction on must be in the same pass over the state as the first
            // row.
            if (!confirmed && image.rows >= MAX_STEPS_AT_ONCE) break;
            if (!known && !(predictor_ && predict(image, step, probability))) break;
            image.confirmed += confirmed;
            ++image.rows;
        }
    }

    // Write the predicted value of a step, and multiply `probability` by that of the prediction. Return
    // false if the prediction is too uncertain.
    bool predict(const Image& image, int step, float& probability) const {
        const uint8_t* const canvas = values(image.slot, 0);
        const int channel = step % steps_per_pixel_, pixel = step / steps_per_pixel_;
        const ValuePredictor::Prediction& prediction = predictor_->predict(canvas, pixel);
        probability *= static_cast<float>(prediction.confidence) / 256.0f;
        if (probability < MIN_PROBABILITY) return false;
        // If an earlier channel of the pixel differs from the prediction, the others will too.
        if (!std::equal(prediction.values, prediction.values + channel,
                        canvas + pixel * config_.channels))
            return false;
        write(image, step, prediction.values + channel);
        return true;
    }

    void add_run(Pass& pass, int slot, const Image& image, int pending, int pending_row) const {
        pass.runs[pass.run_count++] = {slot, pass.row_count, image.rows, image.confirmed,
                                       pending, pending_row};
        for (int k = 0; k < image.rows; ++k) pass.rows[pass.row_count++] = {slot, image.step + k};
    }

    // Commit one decision. Return true if its values are those that the following rows assumed.
    bool commit_decision(const Image& image, const Decision& decision) {
        const int step = decision.row.step, channel = step % steps_per_pixel_;
        const size_t pixel = pixel_of(step);
        uint8_t* const canvas = values(image.slot, step);
        const bool as_assumed =
            std::equal(decision.values, decision.values + config_.step_channels, canvas);
        write(image, step, decision.values);
        float& bits = arrays_.bits[offset(image.slot, 1) + pixel];
        bits = channel ? bits + decision.bits : decision.bits;
        if (image.twin != NONE) arrays_.bits[offset(image.twin, 1) + pixel] = bits;
        const bool pixel_done = channel + 1 == steps_per_pixel_;
        if (predictor_ && pixel_done && !arrays_.known[offset(image.slot, 1) + pixel])
            predictor_->update(values(image.slot, 0), static_cast<int>(pixel));
        return as_assumed;
    }

    // Reset a step's values to 0 unless they are known.
    void clear_value(const Image& image, int step) const {
        constexpr uint8_t ZEROS[MAX_CHANNELS] = {};
        if (!arrays_.known[offset(image.slot, 1) + pixel_of(step)]) write(image, step, ZEROS);
    }

    // Write the first value of a network that does not model it.
    void write_first_value(Image& image) const {
        const auto first = static_cast<uint8_t>(config_.first_value);
        if (!arrays_.known[offset(image.slot, 1)]) write(image, 0, &first);
        image.step = 1;
        set_position(image);
    }

    void set_position(const Image& image) const {
        arrays_.positions[image.slot] = image.step / steps_per_pixel_;
        if (image.twin != NONE) arrays_.positions[image.twin] = image.step / steps_per_pixel_;
    }

    // Write a step's values to the canvas of an image and its twin.
    void write(const Image& image, int step, const uint8_t* from) const {
        std::copy_n(from, config_.step_channels, values(image.slot, step));
        if (image.twin != NONE) std::copy_n(from, config_.step_channels, values(image.twin, step));
    }

    uint8_t* values(int slot, int step) const {
        return arrays_.canvas + offset(slot, config_.channels) + step * config_.step_channels;
    }

    size_t pixel_of(int step) const { return static_cast<size_t>(step / steps_per_pixel_); }

    // Offset of a slot in an array with `per_pixel` values per pixel.
    size_t offset(int slot, int per_pixel) const {
        return static_cast<size_t>(slot) * static_cast<size_t>(pixels_ * per_pixel);
    }

    const Config& config_;
    const Arrays& arrays_;
    const int pixels_, steps_per_pixel_, lookahead_;
    ValuePredictor* const predictor_;
    Image images_[MAX_ROWS];
    int image_count_ = 0;
};

}  // namespace scanline
