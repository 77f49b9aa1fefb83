/** Scene four: what it cannot do. */

import { drawn, patiently, postPicture } from "../api.js";
import { hold } from "../fields.js";
import { area, toCanvas, toPng } from "../pixels.js";

const SEED = 61;
const OTHER_SEED = 1000; // of the upper halves; the same would draw the same one again
const WAYS = 3;

/** Keeps the lower half of an image and has the upper half drawn, which takes no notice of it. */
export class LimitsScene {
  constructor(place, say, fail) {
    this.say = say;
    this.row = place.querySelector(".row");
    this.button = place.querySelector("button");
    this.button.addEventListener("click", () => this.show().catch(fail));
  }

  set(model, signal) {
    Object.assign(this, { model, signal });
    this.row.replaceChildren();
  }

  async show() {
    const { model, say, signal } = this;
    const release = hold(this.button);
    try {
      const picture = await drawn(model, { seed: SEED }, signal, say);
      const first = model.width * Math.round(model.height / 2);
      const png = await toPng(picture, (p) => p >= first);
      const fields = { model: model.id, n: WAYS, seed: OTHER_SEED, output: "values" };
      const reply = await patiently(
        () => postPicture("v1/completions", fields, png, signal), signal, { say });
      const { images } = await reply.json();
      const known = new Uint8Array(area(model)).fill(1, first);
      this.row.replaceChildren(
        this.frame(picture, "What it was given: the lower half", (p) => known[p]),
        ...images.map(({ values }, k) => this.frame(
          { shape: model, values: Uint8Array.from(values) }, `Its upper half, way ${k + 1}`)),
      );
      say("The upper halves were drawn without a look at the lower one.");
    } finally {
      release(this.button);
    }
  }

  frame(picture, name, visible) {
    const canvas = toCanvas(picture, visible);
    canvas.setAttribute("role", "img");
    canvas.ariaLabel = name;
    return canvas;
  }
}
