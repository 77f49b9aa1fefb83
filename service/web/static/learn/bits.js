/** Scene three: what a bit is, and that a model which guesses well compresses. */

import { drawn, score } from "../api.js";
import { paintHeat } from "../heatmap.js";
import { area, toImageData, toPng } from "../pixels.js";
import { whole } from "../format.js";

const SEED = 61;

/** Measures an image that the model has drawn. */
export class BitsScene {
  constructor(place, say) {
    this.say = say;
    [this.picture, this.heat] = place.querySelectorAll("canvas");
    [this.plain, this.packed] = place.querySelectorAll(".meter");
    this.elsewhere = place.querySelector("[data-elsewhere]");
  }

  async set(model, signal) {
    const picture = await drawn(model, { seed: SEED }, signal, this.say);
    const [{ bits, pixel_bits: each }] = await score(model, await toPng(picture), null, signal, this.say);
    for (const canvas of [this.picture, this.heat]) {
      canvas.width = model.width;
      canvas.height = model.height;
    }
    this.picture.getContext("2d").putImageData(toImageData(picture), 0, 0);
    paintHeat(this.heat, each, area(model), false);
    const plain = 8 * picture.values.length;
    const show = (meter, count, text) => {
      meter.style.setProperty("--done", String(count / plain));
      meter.querySelector("span").textContent = `${text}: ${whole.format(count)} bits`;
    };
    show(this.plain, plain, "Written down value by value");
    show(this.packed, bits, "Told only what this model cannot guess");
    this.say(`${whole.format(bits)} bits instead of ${whole.format(plain)}: it compresses, `
      + `${(plain / bits).toFixed(1)} times.`);
    this.elsewhere.textContent = model.bits_per_dim === null ? "" : "Its own pictures are easy for "
      + `it. Over pictures it did not learn from, it needs ${model.bits_per_dim.toFixed(2)} bits `
      + "for each value (bits/dim), where plain writing takes 8.";
  }
}
