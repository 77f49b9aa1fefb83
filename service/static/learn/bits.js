/** Scene three: what a bit is, and that a model which guesses well compresses. */

import { patiently, postJson, postPicture } from "../api.js";
import { paintHeat } from "../heat.js";
import { area, toImageData, toPng } from "../pixels.js";

const SEED = 61;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Measures an image that the model has drawn. */
export class BitsScene {
  constructor(place, say) {
    this.say = say;
    [this.picture, this.heat] = place.querySelectorAll("canvas");
    [this.plain, this.packed] = place.querySelectorAll(".meter");
    this.elsewhere = place.querySelector("[data-elsewhere]");
  }

  async set(model, signal) {
    const asked = { model: model.id, seed: SEED, output: "values" };
    const drawn = await patiently(() => postJson("v1/samples", asked, signal), signal);
    const picture = { shape: model, values: Uint8Array.from(drawn.images[0].values) };
    const fields = { model: model.id, per_pixel: "true" };
    const png = await toPng(picture);
    const reply = await patiently(() => postPicture("v1/score", fields, png, signal), signal);
    const [{ bits, pixel_bits: each }] = (await reply.json()).data;
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
