/** "What if": replace the value of a pixel, and let the model continue from there. */

import { randomSeed, readNumber } from "./fields.js";
import { channelNames } from "./format.js";
import { ImageGrid } from "./image-grid.js";
import { pixelCount, toBase64Url, toPng } from "./pixels.js";
import { SamplingControls } from "./sampling-controls.js";

const COUNT = 8; // at most
const SECONDS_PER_IMAGE = 3;

/** The form with the replacement values, and the grid of continuations. */
export class WhatIf {
  /** @param {object} page @param {() => void} onChange of a value or a sampling parameter */
  constructor(page, onChange) {
    this.count = Math.min(COUNT, page.maxImages);
    this.form = document.getElementById("whatif-form");
    this.form.querySelector("[type=submit]").textContent =
      this.count === 1 ? "Continue" : `Continue in ${this.count} ways`;
    this.values = document.getElementById("whatif-values");
    this.grid = new ImageGrid(document.getElementById("whatif-results"), page, this.form);
    this.onChange = onChange;
    this.sampling = new SamplingControls(document.getElementById("whatif-sampling"));
    this.values.addEventListener("input", () => { this.target.chosen = true; });
    this.form.addEventListener("input", () => onChange());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.drawContinuations();
    });
  }

  /** Switch to a model, with one number field per channel. */
  setModel(model) {
    this.model = model;
    this.sampling.setModel(model);
    // Start from the model's own distribution, which the charts then show unchanged.
    this.sampling.setNeutral();
    this.values.replaceChildren(...channelNames(model).map((name, c) => {
      const field = document.createElement("div");
      const label = document.createElement("label");
      const input = document.createElement("input");
      field.className = "field";
      Object.assign(input, {
        id: `whatif-${c}`, type: "number", min: 0, max: 255, required: true, value: 0,
      });
      label.htmlFor = input.id;
      label.textContent = name;
      field.append(label, input);
      return field;
    }));
  }

  /** The value in the field of each channel. */
  get chosen() {
    return [...this.values.querySelectorAll("input")].map((input) => readNumber(input, 0));
  }

  /** Choose the value of a channel. */
  choose(channel, value) {
    this.values.querySelectorAll("input")[channel].value = value;
    this.target.chosen = true;
    this.onChange();
  }

  /** Move to another pixel, and forget the values chosen for the previous one. */
  setTarget(picture, at, label) {
    if (this.target?.picture === picture && this.target.at === at) return;
    this.target = { picture, at, label, chosen: false, suggested: false };
    this.sampling.enableGuidance(Boolean(label));
  }

  /** Fill in the expected values of a pixel, unless the visitor has chosen or edits values. */
  suggest(at, expected) {
    const editing = this.values.contains(document.activeElement);
    if (this.target.at !== at || this.target.chosen || editing) return;
    this.target.suggested = true;
    this.values.querySelectorAll("input").forEach((input, c) => {
      input.value = expected[c] ?? expected[0];
    });
  }

  /** Keep the pixels before the target, insert the chosen values, and draw the rest. */
  async drawContinuations() {
    const { model, chosen, target: { picture, at, label, ...target } } = this;
    const replace = target.chosen || target.suggested; // else the fields hold another pixel's values
    const known = new Uint8Array(pixelCount(model)).fill(1, 0, replace ? at + 1 : at);
    if (!known.includes(0)) {
      this.grid.status.showError("Nothing comes after this pixel. Choose one before it.");
      return;
    }
    const input = { shape: model, values: picture.values.slice(), known };
    if (replace) input.values.set(chosen, at * model.channels);
    const png = await toPng(input, (p) => known[p]);
    const fields = {
      model: model.id,
      n: this.count,
      seed: randomSeed(),
      ...this.sampling.fields(label),
    };
    const link = { view: "complete", fields: { ...fields, image: await toBase64Url(png) } };
    if (model !== this.model) return;
    await this.grid.run({
      input, link, secondsPerImage: SECONDS_PER_IMAGE, scroll: true,
      requests: [{ model, fields, image: png, link }],
    });
  }
}
