/** Scene one: a pixel, a guess, a roll of the dice, and then all the others. */

import { drawn, patiently, postJson, postPicture, score } from "../api.js";
import { Chart, scheme } from "../chart.js";
import { hold, randomSeed } from "../fields.js";
import { surprises } from "../heatmap.js";
import { area, toPng } from "../pixels.js";
import { Player, calm } from "../player.js";
import { follow } from "../stream.js";
import { likeliest, nameOf, percent } from "../format.js";

const SEED = 7;
const SECONDS = 5;
const CHANNELS = ["red", "green", "blue"];

/** Rolls the dice itself: it draws from what /v1/distribution says. */
export class DiceScene {
  constructor(place, say, fail) {
    this.say = say;
    this.failed = (error) => {
      fail(error);
      if (error.name !== "AbortError") this.offerAgain(); // another model begins by itself
    };
    const [picture, chart] = place.querySelectorAll("canvas");
    this.player = new Player(picture, () => this.count());
    this.chart = new Chart(chart, null, () => {});
    scheme.addEventListener("change", () => this.chart.draw());
    this.counter = place.querySelector("[data-count]");
    [this.roll, this.rest] = place.querySelectorAll("button");
    this.roll.addEventListener("click", () => this.rollOnce().catch(this.failed));
    this.rest.addEventListener("click", () => {
      this.say("");
      (this.done ? this.begin() : this.rollAll()).catch(this.failed);
    });
  }

  set(model, signal) {
    Object.assign(this, { model, signal });
    return this.begin().catch(this.failed);
  }

  /** Begin where an image is at its most open: at its costliest pixel. */
  async begin() {
    const { model, signal } = this;
    this.player.stop();
    this.player.begin(model);
    this.chart.channel = model.channels === 3 ? 0 : null;
    this.values = [];
    this.done = false;
    this.rest.textContent = "Roll all the rest";
    this.busy();
    const picture = await drawn(model, { seed: SEED }, signal, this.say);
    const [{ pixel_bits: bits }] = await score(model, await toPng(picture), null, signal, this.say);
    const [start] = surprises(bits.slice(0, Math.ceil(bits.length / 2)), 1);
    this.player.write(0, picture.values.slice(0, start * model.channels));
    this.player.stop();
    this.player.seek(start);
    this.values = [...picture.values.slice(0, start * model.channels)];
    await this.guess();
    this.say("");
  }

  /** Nothing is left to roll for, or nothing more comes: offer to begin again. */
  offerAgain() {
    this.done = true;
    this.rest.textContent = "Begin again";
    this.free(this.rest);
  }

  /** Let nothing be pressed until it is answered. */
  busy() {
    this.release ??= hold(this.roll, this.rest);
  }

  /** Let these be pressed again. */
  free(...buttons) {
    this.release?.(...buttons);
    this.release = null;
  }

  /** Ask for the distribution of the next value, and show it. */
  async guess() {
    const { model, signal, values } = this;
    this.busy();
    if (values.length === area(model) * model.channels) {
      this.offerAgain();
      return;
    }
    const asked = { model: model.id, values };
    const { say } = this;
    const reply = await patiently(() => postJson("v1/distribution", asked, signal), signal, { say });
    this.probabilities = reply.probabilities;
    if (model.channels === 3) this.chart.channel = reply.channel;
    this.chart.show(this.probabilities, null, null);
    this.free(this.roll, this.rest);
  }

  name(value) {
    const { channels } = this.model;
    if (channels === 1) return `${value}, ${nameOf([value])}`;
    return `${value} of ${CHANNELS[this.values.length % channels]}`;
  }

  /** Let the dice fall as the distribution says, and go on to the next value. */
  async rollOnce() {
    const { probabilities, values, model } = this;
    let left = Math.random() * probabilities.reduce((sum, p) => sum + p, 0);
    const found = probabilities.findIndex((p) => (left -= p) < 0);
    const value = found < 0 ? likeliest(probabilities) : found;
    const said = `The dice said ${this.name(value)}: a chance of ${percent(probabilities[value])}.`;
    this.say(said);
    values.push(value);
    if (values.length % model.channels === 0) {
      const position = values.length / model.channels - 1;
      this.player.write(position, values.slice(-model.channels));
      this.player.stop();
      this.player.seek(position + 1);
    }
    await this.guess();
    this.say(said); // whatever was said while it was waited for
  }

  /** Have the server roll for every pixel that is left. */
  async rollAll() {
    const { model, signal, player } = this;
    this.busy();
    const position = Math.floor(this.values.length / model.channels);
    const known = new Uint8Array(area(model)).fill(1, 0, position);
    const png = await toPng(player.picture, (p) => known[p]);
    player.rate = calm.matches ? Infinity : (area(model) - position) / SECONDS;
    const fields = { model: model.id, seed: randomSeed(), stream: true };
    await follow(
      () => postPicture("v1/completions", fields, png, signal),
      (event) => player.hear(event),
      this.say,
      signal,
    );
    await player.rested();
    signal.throwIfAborted();
    this.values = [...player.picture.values];
    await this.guess();
    this.say(`${area(model)} pixels, each a roll of the dice: a picture nobody has seen before.`);
  }

  count() {
    if (this.model) this.counter.textContent = `${this.player.position} of ${area(this.model)} pixels`;
  }
}
