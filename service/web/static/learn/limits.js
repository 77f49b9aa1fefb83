/** Scene 4: what the model cannot do. */

import { drawPicture, postImages, readJson, withRetries } from "../api.js";
import { pixelCount, toCanvas, toPng } from "../pixels.js";

const SEED = 61;
const COMPLETION_SEED = 1000; // with the seed of the picture, the same upper half would be drawn
const COUNT = 3;

/** Shows that upper halves are drawn without regard to a known lower half. */
export class LimitsScene {
  constructor(element, onStatus) {
    this.onStatus = onStatus;
    this.row = element.querySelector(".row");
  }

  start(model, signal) {
    Object.assign(this, { model, signal });
    this.row.replaceChildren();
  }

  async draw() {
    const { model, onStatus, signal } = this;
    const picture = await drawPicture(model, { seed: SEED }, signal, onStatus);
    const first = model.width * Math.round(model.height / 2);
    const png = await toPng(picture, (p) => p >= first);
    const images = await Promise.all(Array.from({ length: COUNT }, async (_, k) => {
      const fields = { model: model.id, seed: COMPLETION_SEED + k, output: "values" };
      const response = await withRetries(
        () => postImages("v1/completions", fields, png, signal), signal, { onStatus });
      return (await readJson(response)).images[0];
    }));
    const known = new Uint8Array(pixelCount(model)).fill(1, first);
    this.row.replaceChildren(
      this.createCanvas(picture, "The known lower half", (p) => known[p]),
      ...images.map(({ values }, k) => this.createCanvas(
        { shape: model, values: Uint8Array.from(values) }, `Completion ${k + 1}`)),
    );
    onStatus("The upper halves were drawn without looking at the lower one.");
  }

  createCanvas(picture, label, visible) {
    const canvas = toCanvas(picture, visible);
    canvas.setAttribute("role", "img");
    canvas.ariaLabel = label;
    return canvas;
  }
}
