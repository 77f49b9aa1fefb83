/** Scene 1: predict the distribution of the next value, and roll the dice for it. */

import { drawPicture, postImages, postJson, scoreImages, withRetries } from "../api.js";
import { Chart, darkScheme } from "../chart.js";
import { disableButtons, randomSeed } from "../fields.js";
import { argmax, colourName, formatPercent } from "../format.js";
import { mostSurprising } from "../heatmap.js";
import { pixelCount, toPng } from "../pixels.js";
import { Player, reducedMotion } from "../player.js";
import { followGeneration } from "../stream.js";

const SEED = 7;
const SECONDS_PER_IMAGE = 5;
const CHANNELS = ["red", "green", "blue"];

/** Samples in the browser from the distributions of /v1/distribution. */
export class DiceScene {
  constructor(element, onStatus, onError) {
    this.onStatus = onStatus;
    this.fail = (error) => {
      onError(error);
      if (error.name !== "AbortError") this.offerRestart(); // after an abort, a new model starts
    };
    const [picture, chart] = element.querySelectorAll("canvas");
    this.player = new Player(picture, () => this.showCount());
    this.chart = new Chart(chart, null, () => {});
    darkScheme.addEventListener("change", () => this.chart.draw());
    this.counter = element.querySelector("[data-count]");
    [this.rollButton, this.restButton] = element.querySelectorAll("button");
    this.rollButton.addEventListener("click", () => this.rollOnce().catch(this.fail));
    this.restButton.addEventListener("click", () => {
      this.onStatus("");
      (this.done ? this.reset() : this.rollAll()).catch(this.fail);
    });
  }

  start(model, signal) {
    Object.assign(this, { model, signal });
    return this.reset().catch(this.fail);
  }

  /** Draw a picture up to its most surprising pixel, where the next roll is interesting. */
  async reset() {
    const { model, signal } = this;
    this.player.stop();
    this.player.reset(model);
    this.chart.channel = model.channels === 3 ? 0 : null;
    this.values = [];
    this.done = false;
    this.restButton.textContent = "Roll all the rest";
    this.lockButtons();
    const picture = await drawPicture(model, { seed: SEED }, signal, this.onStatus);
    const [{ pixel_bits: bits }] =
      await scoreImages(model, await toPng(picture), null, signal, this.onStatus);
    const [start] = mostSurprising(bits.slice(0, Math.ceil(bits.length / 2)), 1);
    this.player.write(0, picture.values.slice(0, start * model.channels));
    this.player.stop();
    this.player.seek(start);
    this.values = [...picture.values.slice(0, start * model.channels)];
    await this.fetchDistribution();
    this.onStatus("");
  }

  /** Offer to begin again, because the picture is complete or a request failed. */
  offerRestart() {
    this.done = true;
    this.restButton.textContent = "Begin again";
    this.unlockButtons(this.restButton);
  }

  /** Disable the buttons during a request. */
  lockButtons() {
    this.unlock ??= disableButtons(this.rollButton, this.restButton);
  }

  /** Enable these buttons again. */
  unlockButtons(...buttons) {
    this.unlock?.(...buttons);
    this.unlock = null;
  }

  /** Fetch the distribution of the next value and show it. */
  async fetchDistribution() {
    const { model, signal, values, onStatus } = this;
    this.lockButtons();
    if (values.length === pixelCount(model) * model.channels) {
      this.offerRestart();
      return;
    }
    const body = { model: model.id, values };
    const reply = await withRetries(
      () => postJson("v1/distribution", body, signal), signal, { onStatus });
    this.probabilities = reply.probabilities;
    if (model.channels === 3) this.chart.channel = reply.channel;
    this.chart.show(this.probabilities, null, null);
    this.unlockButtons(this.rollButton, this.restButton);
  }

  describeValue(value) {
    const { channels } = this.model;
    if (channels === 1) return `${value}, ${colourName([value])}`;
    return `${value} of ${CHANNELS[this.values.length % channels]}`;
  }

  /** Sample the next value. */
  async rollOnce() {
    const { probabilities, values, model } = this;
    let rest = Math.random() * probabilities.reduce((sum, p) => sum + p, 0);
    const found = probabilities.findIndex((p) => (rest -= p) < 0);
    const value = found < 0 ? argmax(probabilities) : found;
    const text = `The dice say ${this.describeValue(value)}: `
      + `a chance of ${formatPercent(probabilities[value])}.`;
    this.onStatus(text);
    values.push(value);
    if (values.length % model.channels === 0) {
      const position = values.length / model.channels - 1;
      this.player.write(position, values.slice(-model.channels));
      this.player.stop();
      this.player.seek(position + 1);
    }
    await this.fetchDistribution();
    this.onStatus(text); // a retry may have replaced it
  }

  /** Let the server draw all remaining pixels. */
  async rollAll() {
    const { model, signal, player } = this;
    this.lockButtons();
    const position = Math.floor(this.values.length / model.channels);
    const known = new Uint8Array(pixelCount(model)).fill(1, 0, position);
    const png = await toPng(player.picture, (p) => known[p]);
    player.rate = reducedMotion.matches
      ? Infinity : (pixelCount(model) - position) / SECONDS_PER_IMAGE;
    const fields = { model: model.id, seed: randomSeed(), stream: true };
    await followGeneration(
      () => postImages("v1/completions", fields, png, signal),
      (event) => player.handleEvent(event),
      this.onStatus,
      signal,
    );
    await player.paused();
    signal.throwIfAborted();
    this.values = [...player.picture.values];
    await this.fetchDistribution();
    this.onStatus(`${pixelCount(model)} pixels, each a roll of the dice: a picture nobody has seen before.`);
  }

  showCount() {
    if (!this.model) return;
    this.counter.textContent = `${this.player.position} of ${pixelCount(this.model)} pixels`;
  }
}
