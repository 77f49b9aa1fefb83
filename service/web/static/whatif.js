/** What if another value had come? The model goes on from there, in many ways. */

import { postPicture } from "./api.js";
import { randomSeed, readNumber } from "./fields.js";
import { area, toPng, toText } from "./pixels.js";
import { SamplingControls } from "./sampling-controls.js";
import { ImageGrid } from "./image-grid.js";
import { channelsOf } from "./format.js";

const WAYS = 8;
const SECONDS = 3;

/** The values to go on with, and what comes of them. */
export class WhatIf {
  /** @param {object} viewer @param {() => void} onChange hears of another value or temperature */
  constructor(viewer, onChange) {
    this.form = document.getElementById("whatif-form");
    this.values = document.getElementById("whatif-values");
    this.grid = new ImageGrid(document.getElementById("whatif-results"), viewer, this.form);
    this.onChange = onChange;
    this.shaping = new SamplingControls(document.getElementById("whatif-sampling"));
    this.values.addEventListener("input", () => { this.place.chosen = true; });
    this.form.addEventListener("input", () => onChange());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.goOn();
    });
  }

  /** Take a model: one number a channel. */
  use(model) {
    this.model = model;
    this.shaping.use(model);
    this.shaping.take(new Map([["guidance", 1], ["top_p", 1]])); // first, the model as it is
    this.values.replaceChildren(...channelsOf(model).map((name, c) => {
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

  get chosen() {
    return [...this.values.querySelectorAll("input")].map((input) => readNumber(input, 0));
  }

  /** Choose a value for a channel. */
  pick(channel, value) {
    this.values.querySelectorAll("input")[channel].value = value;
    this.place.chosen = true;
    this.onChange();
  }

  /** Stand at another pixel; what was chosen elsewhere is forgotten. */
  stand(picture, at, label) {
    if (this.place?.picture === picture && this.place.at === at) return;
    this.place = { picture, at, label, chosen: false, offered: false };
    this.shaping.guided(Boolean(label));
  }

  /** Offer what is expected at a pixel, unless the person has chosen already, or is about to. */
  offer(at, expected) {
    const busy = this.values.contains(document.activeElement);
    if (this.place.at !== at || this.place.chosen || busy) return;
    this.place.offered = true;
    this.values.querySelectorAll("input").forEach((input, c) => {
      input.value = expected[c] ?? expected[0];
    });
  }

  /** Keep all before this pixel, put the chosen values in, and have the rest drawn. */
  async goOn() {
    const { model, chosen, place: { picture, at, label, ...place } } = this;
    const put = place.chosen || place.offered; // else what stands there is another pixel's
    const known = new Uint8Array(area(model)).fill(1, 0, put ? at + 1 : at);
    if (!known.includes(0)) {
      this.grid.report.complain("Nothing comes after this pixel. Choose one before it.");
      return;
    }
    const given = { shape: model, values: picture.values.slice(), known };
    if (put) given.values.set(chosen, at * model.channels);
    const png = await toPng(given, (p) => known[p]);
    const fields = {
      model: model.id,
      n: WAYS,
      seed: randomSeed(),
      ...this.shaping.fields(label),
    };
    const link = { view: "complete", fields: { ...fields, image: await toText(png) } };
    if (model !== this.model) return;
    await this.grid.run({
      given, link, pace: SECONDS, reveal: true,
      parts: [{
        model, fields, link,
        open: (signal) => postPicture("v1/completions", { ...fields, stream: true }, png, signal),
      }],
    });
  }
}
