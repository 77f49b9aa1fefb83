/** A picture that is drawn slowly, with the probabilities of each pixel's values as bars. */

import { pause } from "./api.js";
import { Chart, connectScale, darkScheme } from "./chart.js";
import { randomSeed, resolveClass, usesGuidance } from "./fields.js";
import { channelNames, describeNext, describeRoll } from "./format.js";
import { drawWithOdds } from "./pixel-odds.js";
import { pixelCount } from "./pixels.js";
import { Player, reducedMotion } from "./player.js";
import { SamplingControls, samplingFields } from "./sampling-controls.js";
import { applySampling } from "./sampling.js";

const CERTAIN_RATE = 150; // pixels per second at which nearly certain pixels pass
const MARK_AFTER = 0.45; // share of a pixel's time before its value is marked
const FOLLOW_RATE = 8; // pixels per second from which the bars skip pixels that arrive late
const FINISH_SECONDS = 5; // duration of "Roll all the rest"
const ROLL_SECONDS = 0.7; // for which a single roll shows its result

/**
 * The server draws the whole picture from a seed; the stage shows it pixel by pixel, and asks for
 * the distribution of each. When the visitor moves a sampling slider or picks a value, the bars
 * change at once, and the server draws the rest of the picture again.
 */
export class DiceStage {
  /**
   * @param {HTMLElement} element receives the stage
   * @param {object} host
   *   `onStatus(text)`, `onError(error)`; `onPicture(source)` is called with the request fields of
   *   each new picture, or null if the visitor has changed it midway
   */
  constructor(element, host) {
    const content = document.getElementById("dice-stage").content.cloneNode(true);
    this.host = host;
    this.element = element;
    element.append(content);
    const find = (name) => element.querySelector(`[data-dice-${name}]`);
    this.player = new Player(find("picture"), (position) => this.onMove(position));
    [this.verdict, this.counter, this.chartList, this.speed, this.classes] =
      ["verdict", "count", "charts", "speed", "class"].map(find);
    this.buttons = Object.fromEntries(["play", "back", "roll", "finish", "renew"]
      .map((name) => [name, find(name)]));
    const sampling = find("sampling");
    sampling.id = `${element.id}-sampling`;
    this.sampling = new SamplingControls(sampling, () => this.onSampling());
    sampling.addEventListener("change", () => this.redraw(this.at));
    this.classes.addEventListener("change", () => this.begin());
    this.charts = [];
    this.scale = connectScale(find("scale"), `${element.id}-scale`, "linear", () => this.showBars());
    darkScheme.addEventListener("change", () => this.showBars());
    const acts = {
      play: () => (this.playing ? this.stop() : this.play()),
      back: () => this.back(),
      roll: () => this.rollOnce(),
      finish: () => this.finish(),
      renew: () => this.begin(),
    };
    for (const [name, act] of Object.entries(acts)) {
      this.buttons[name].addEventListener("click", () => this.guard(act));
    }
    this.run = null; // token of the running animation
  }

  /** Return the picture, if the server has drawn it. */
  pictures() {
    return this.odds ? [this.player.picture] : [];
  }

  get playing() {
    return this.run !== null;
  }

  get total() {
    return pixelCount(this.model);
  }

  get label() {
    return this.source?.label;
  }

  /** Run an action and report its error, unless it was aborted. */
  async guard(act) {
    try {
      await act();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.halt();
      this.host.onError(error);
    }
  }

  /** Switch to a model: its classes, charts and sampling defaults. */
  setModel(model) {
    this.halt();
    this.abort?.abort();
    Object.assign(this, { model, source: null, odds: null, answer: null, shown: null, at: 0 });
    this.sampling.setModel(model);
    this.classes.replaceChildren(...["", ...model.classes]
      .map((name) => new Option(name || "anything", name)));
    this.classes.closest(".field").hidden = !model.classes.length;
    const names = channelNames(model);
    this.charts = names.map((name, channel) => {
      const canvas = document.createElement("canvas");
      canvas.className = "chart";
      canvas.setAttribute("role", "img");
      canvas.ariaLabel = `${name}: probability of each of 256 values`;
      return new Chart(canvas, names.length > 1 ? channel : null, (value) =>
        this.guard(() => this.choose(channel, value)));
    });
    this.chartList.replaceChildren(...this.charts.map(({ canvas }) => canvas));
    this.chartList.dataset.charts = names.length;
    this.player.reset(model);
    this.showButtons();
  }

  /**
   * Draw a picture and show its first pixels.
   *
   * @param {object} options
   * @param {URLSearchParams | null} options.link fields of a link, instead of the controls
   * @param {boolean} options.autoplay begin to play; otherwise stop before a pixel that is open
   */
  begin({ link = null, autoplay = true } = {}) {
    if (link) {
      this.classes.value = resolveClass(this.model, link.get("label") ?? "");
      this.sampling.setFromLink(link);
    }
    return this.guard(async () => {
      this.source = this.newSource(link);
      this.sampling.enableGuidance(Boolean(this.label));
      this.modified = false;
      this.host.onPicture(this.source);
      await this.draw(0);
      if (autoplay && !reducedMotion.matches) await this.play();
      else await this.show(this.odds.mostOpenPixel());
    });
  }

  /** Return the request fields of a new picture. With guidance, "anything" is a random class. */
  newSource(link) {
    const { model, classes: { value } } = this;
    const seed = Number(link?.get("seed") ?? NaN);
    const random = model.classes[Math.floor(Math.random() * model.classes.length)];
    const label = value || (usesGuidance(model) && !link?.has("seed") ? random : "");
    return {
      seed: Number.isSafeInteger(seed) && seed >= 0 ? seed : randomSeed(),
      ...samplingFields(model, this.sampling.values, label),
    };
  }

  /** Let the server draw all pixels from `from` on, and measure their bits. */
  async draw(from) {
    this.halt();
    this.abort?.abort();
    this.abort = new AbortController();
    const { model, source, abort: { signal }, host, player } = this;
    if (from === 0) {
      Object.assign(this, { at: 0, odds: null, answer: null, shown: null });
      player.reset(model);
      for (const chart of this.charts) chart.clear();
      this.say("The model is drawing …");
    }
    this.showButtons(true);
    const onWait = (text) => { this.waited = true; host.onStatus(text); };
    this.odds = await drawWithOdds(model, source, player.picture, from, signal, onWait);
    host.onStatus("");
    player.load(this.odds.picture);
    player.seek(from);
    this.showButtons();
  }

  /** Draw the rest again with the sampling values of the sliders. */
  redraw(from) {
    if (!this.odds) return this.source && this.begin(); // not drawn yet
    return this.guard(async () => {
      const { playing } = this;
      this.source = {
        seed: this.source.seed, ...samplingFields(this.model, this.sampling.values, this.label),
      };
      this.modified ||= from > 0;
      await this.draw(from);
      this.host.onPicture(this.modified ? null : this.source);
      if (playing) await this.play();
      else if (from < this.total) await this.show(from);
      else await this.showLast();
    });
  }

  /** Play to the end. The pixels that are nearly certain pass quickly. */
  async play() {
    const run = {};
    this.run = run;
    this.showButtons();
    while (this.run === run && this.at < this.total) {
      if (!this.element.checkVisibility()) {
        this.halt();
        return;
      }
      if (this.odds.isCertain(this.at)) {
        this.move(this.at + 1);
        await pause(1 / CERTAIN_RATE, this.abort.signal);
      } else {
        await this.roll(run, 1 / Number(this.speed.value));
      }
    }
    if (this.run === run) await this.end();
  }

  /** Show the bars of the next pixel, then the value that the dice chose. */
  async roll(run, seconds) {
    const { at, abort: { signal } } = this;
    if (seconds > 1 / FOLLOW_RATE) {
      const shown = this.show(at); // requested before the pixels after it
      this.odds.prefetch(at + 1, this.guided);
      await shown;
      await pause(MARK_AFTER * seconds, signal);
      if (this.run !== run) return;
      this.mark();
      await pause((1 - MARK_AFTER) * seconds, signal);
    } else {
      this.follow(at);
      this.move(at + 1);
      await pause(seconds, signal);
    }
  }

  /** Roll for one pixel, then show the bars of the one after it. */
  async rollOnce() {
    this.halt();
    const { abort: { signal }, at } = this;
    if (this.shown !== at || this.marked) await this.show(at);
    this.odds.prefetch(at + 1, this.guided);
    this.mark();
    await pause(ROLL_SECONDS, signal);
    if (this.at !== at + 1 || this.playing) return;
    if (this.at < this.total) await this.show(this.at);
    else await this.end();
  }

  async back() {
    this.halt();
    await this.show(Math.max(0, this.at - 1));
  }

  /** Show the rest in some seconds; the bars follow as fast as the server answers. */
  async finish() {
    this.halt();
    const { player, abort: { signal } } = this;
    this.run = {};
    this.showButtons();
    player.rate = reducedMotion.matches ? Infinity : (this.total - this.at) / FINISH_SECONDS;
    player.play();
    await player.paused();
    signal.throwIfAborted();
    if (player.position === this.total) await this.end();
  }

  /** Show the last pixel, because the picture is complete. */
  async end() {
    this.halt();
    this.move(this.total);
    this.showButtons();
    await this.showLast();
    this.host.onStatus(`${this.total} pixels, each a roll of the dice: a picture nobody has seen before.`);
  }

  async showLast() {
    await this.load(this.total - 1);
    this.marked = true;
    this.showBars();
    this.say(`The last pixel is ${this.describe(this.shown)}.`);
  }

  /** Stop the animation. */
  halt() {
    this.run = null;
    this.player.stop();
    this.showButtons();
  }

  /** Stop the animation before the next pixel, and show its bars. */
  async stop() {
    this.halt();
    if (this.at < this.total) await this.show(this.at);
  }

  /** Replace a value of the pixel that is shown, and let the model go on from there. */
  async choose(channel, value) {
    if (this.shown === null) return;
    const { shown: p, player: { picture } } = this;
    picture.values[p * this.model.channels + channel] = value;
    const text = `You chose ${this.describe(p)}.`;
    this.move(p + 1);
    await this.redraw(p + 1);
    this.host.onStatus(text);
  }

  /** Move to a position: so many pixels are painted. */
  move(position) {
    this.at = position;
    this.player.seek(position);
  }

  /** Show the bars of pixel `p`, which is not painted yet. */
  async show(p) {
    this.move(p);
    await this.load(p);
    if (this.at !== p) return;
    this.marked = false;
    this.showBars();
    this.say(describeNext(this.shaped()));
  }

  /** Show a sentence above the bars. Screen readers read it aloud unless pixels follow each other. */
  say(text) {
    this.verdict.ariaLive = this.playing ? "off" : "polite";
    this.verdict.textContent = text;
  }

  /** Load the distributions of pixel `p`. */
  async load(p) {
    this.answer = await this.odds.fetch(p, this.guided);
    this.shown = p;
    if (this.waited) this.host.onStatus(""); // the server has answered
    this.waited = false;
  }

  get guided() {
    return Boolean(this.label) && this.sampling.values.guidance !== 1;
  }

  /** Show the bars of pixel `p` and its value once they arrive, unless others are on their way. */
  follow(p) {
    if (this.following) return;
    this.following = true;
    this.guard(() => this.load(p).then(() => {
      this.marked = true;
      this.showBars();
      this.say(`The dice say ${this.describe(p)}.`);
    })).finally(() => { this.following = false; });
  }

  /** Mark the value that the dice chose, and paint the pixel. */
  mark() {
    this.marked = true;
    this.showBars();
    this.say(`The dice say ${this.describe(this.shown)}.`);
    this.move(this.shown + 1);
  }

  onMove(position) {
    if (!this.model) return;
    if (this.playing && this.player.playing) { // "Roll all the rest"
      this.at = position;
      if (position) this.follow(position - 1);
    }
    this.counter.textContent = `${position} of ${this.total} pixels`;
    this.showButtons();
  }

  onSampling() {
    if (!this.answer) return;
    if (this.guided && !this.answer.unconditional) {
      this.guard(() => this.load(this.shown).then(() => this.showBars()));
    }
    this.showBars();
  }

  /** Return the distribution of each channel, shaped by the sliders. */
  shaped() {
    const { conditional, unconditional } = this.answer;
    return conditional.map((p, c) => applySampling(p, unconditional?.[c], this.sampling.values));
  }

  showBars() {
    if (!this.answer) return;
    const { channels } = this.model;
    this.shaped().forEach((probabilities, c) => {
      const value = this.player.picture.values[this.shown * channels + c];
      this.charts[c].linear = this.scale.linear;
      this.charts[c].show(probabilities, this.marked ? value : null, null);
    });
  }

  /** Describe the value of pixel `p` and its chance. */
  describe(p) {
    const { channels } = this.model;
    const values = [...this.player.picture.values.subarray(p * channels, (p + 1) * channels)];
    return describeRoll(values, this.shaped().map((probabilities, c) => probabilities[values[c]]));
  }

  /** Enable the buttons that make sense now. */
  showButtons(drawing = false) {
    if (!this.buttons) return;
    const { play, back, roll, finish } = this.buttons;
    const done = this.model && this.at === this.total;
    const ready = Boolean(this.odds) && !drawing;
    play.textContent = this.playing ? "Pause" : "Play";
    play.disabled = roll.disabled = finish.disabled = !ready || done;
    back.disabled = !ready || !this.at;
  }
}
