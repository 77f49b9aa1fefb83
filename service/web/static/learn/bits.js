/** Scene 3: what a bit is, and why a good model compresses. */

import { drawPicture, scoreImages } from "../api.js";
import { integerFormat } from "../format.js";
import { paintHeatmap } from "../heatmap.js";
import { pixelCount, toImageData, toPng } from "../pixels.js";

const SEED = 61;

/** Draws an image and shows its bits. */
export class BitsScene {
  constructor(element, onStatus) {
    this.onStatus = onStatus;
    [this.picture, this.heatmap] = element.querySelectorAll("canvas");
    [this.uncompressed, this.compressed] = element.querySelectorAll(".meter");
    this.testSetHint = element.querySelector("[data-test-set]");
  }

  async start(model, signal) {
    const picture = await drawPicture(model, { seed: SEED }, signal, this.onStatus);
    const [{ bits, pixel_bits: pixelBits }] =
      await scoreImages(model, await toPng(picture), null, signal, this.onStatus);
    for (const canvas of [this.picture, this.heatmap]) {
      canvas.width = model.width;
      canvas.height = model.height;
    }
    this.picture.getContext("2d").putImageData(toImageData(picture), 0, 0);
    paintHeatmap(this.heatmap, pixelBits, pixelCount(model), false);
    const uncompressed = 8 * picture.values.length;
    const setMeter = (meter, count, text) => {
      meter.style.setProperty("--done", String(count / uncompressed));
      meter.querySelector("span").textContent = `${text}: ${integerFormat.format(count)} bits`;
    };
    setMeter(this.uncompressed, uncompressed, "Every value written down");
    setMeter(this.compressed, bits, "Only what this model cannot guess");
    this.onStatus(`${integerFormat.format(bits)} bits instead of `
      + `${integerFormat.format(uncompressed)}: compressed ${(uncompressed / bits).toFixed(1)} times.`);
    this.testSetHint.textContent = model.bits_per_dim === null ? "" : "Pictures differ: a busy one costs "
      + "more than a plain one. For pictures that it has not seen in training, the model needs "
      + `${model.bits_per_dim.toFixed(2)} bits per value on average, where writing them down takes 8.`;
  }
}
