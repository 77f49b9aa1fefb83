/** A picture that is drawn slowly, with the probabilities of each pixel's values as bars. */

import { pause } from "./api.js";
import { drawnAs, integerFormat } from "./format.js";
import { PixelBars } from "./pixel-bars.js";
import { drawWithOdds } from "./pixel-odds.js";
import { pixelCount } from "./pixels.js";
import { Player, reducedMotion } from "./player.js";
import { StageControls } from "./stage-controls.js";

const CERTAIN_RATE = 150; // pixels per second at which nearly certain pixels pass
const MARK_AFTER = 0.45; // share of a pixel's time before its value is marked
const FOLLOW_RATE = 8; // pixels per second from which the bars skip pixels that arrive late
const FINISH_SECONDS = 5; // duration of "Roll all the rest"
const ROLL_SECONDS = 0.7; // for which a single roll shows its result
const UNDO_STEPS = 10; // each keeps the distributions of its picture

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
   *   each new picture, or null once the visitor changes it; `onDrawn()` is optional, and
   *   called when the server has drawn one
   */
  constructor(element, host) {
    const content = document.getElementById("dice-stage").content.cloneNode(true);
    this.host = host;
    this.element = element;
    element.append(content);
    const find = (name) => element.querySelector(`[data-dice-${name}]`);
    this.player = new Player(find("picture"), (position) => this.onMove(position));
    [this.counter, this.speed] = ["count", "speed"].map(find);
    this.buttons = Object.fromEntries(["play", "back", "roll", "finish", "undo", "restart"]
      .map((name) => [name, find(name)]));
    this.controls = new StageControls(element, {
      onClass: () => this.begin(),
      onSampling: () => this.redraw(this.at % this.total, this.at), // a complete picture from its start
      onDrag: () => this.onDrag(),
    });
    this.bars = new PixelBars(element, () => this.controls.values, (channel, value) =>
      this.guard(() => this.choose(channel, value)));
    const acts = {
      play: () => (this.playing ? this.stop() : this.play()),
      back: () => this.back(),
      roll: () => this.rollOnce(),
      finish: () => this.finish(),
      undo: () => this.restore(this.undoStack.pop()),
      restart: () => this.begin(),
    };
    for (const [name, act] of Object.entries(acts)) {
      this.buttons[name].addEventListener("click", () => {
        host.onStatus(""); // it describes what the stage showed before
        this.guard(act);
      });
    }
    this.run = null; // token of the running animation
    this.undoStack = [];
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

  /** Run an action and return true if it succeeds. Report its error, unless it was aborted. */
  async guard(act) {
    try {
      await act();
      return true;
    } catch (error) {
      if (error.name !== "AbortError") {
        this.halt();
        this.host.onError(error);
      }
      return false;
    }
  }

  /** Switch to a model: its controls and charts. */
  setModel(model) {
    this.halt();
    this.abort?.abort();
    Object.assign(this, { model, odds: null, at: 0, undoStack: [] });
    this.controls.setModel(model);
    this.bars.setModel(model);
    this.player.reset(model);
    this.showButtons();
  }

  /**
   * Draw a picture and show its first pixels.
   *
   * @param {object} options
   * @param {URLSearchParams | null} options.link fields of a link, instead of the controls
   * @param {boolean} options.autoplay begin to play; otherwise stop before an uncertain pixel
   */
  begin({ link = null, autoplay = true } = {}) {
    this.controls.begin(link);
    return this.drawWhole(autoplay);
  }

  /** Draw the picture of the controls' source, and show its first pixels. */
  drawWhole(autoplay = true) {
    return this.guard(async () => {
      Object.assign(this, { modified: false, undoStack: [], odds: null });
      this.host.onPicture(this.controls.source);
      await this.draw(0);
      if (autoplay && !reducedMotion.matches) await this.play();
      else await this.show(this.odds.mostUncertainPixel());
    });
  }

  /** Show the picture again after a failure. */
  retry() {
    return this.odds ? this.guard(() => this.showAt(this.at)) : this.drawWhole();
  }

  /** Let the server draw all pixels from `from` on, and measure their bits. */
  async draw(from) {
    this.halt();
    this.abort?.abort();
    this.abort = new AbortController();
    const { model, controls: { source }, abort: { signal }, host, player } = this;
    if (from === 0) {
      Object.assign(this, { at: 0, odds: null });
      player.reset(model);
      this.bars.clear();
      this.say("The model draws the whole picture first. Then you watch it slowly.");
    }
    this.showButtons(true);
    const onWait = (text) => { this.waited = true; host.onStatus(text); };
    this.odds = await drawWithOdds(model, source, player.picture, from, signal, onWait);
    host.onStatus("");
    host.onDrawn?.();
    player.load(this.odds.picture);
    player.seek(from);
    this.showButtons();
  }

  /**
   * Draw the pixels from `from` on again with the sampling values of the sliders. Undo, and a
   * failure, return to position `before`. The status is `text` once they are drawn.
   */
  redraw(from, before = from, text = "") {
    const { controls } = this;
    if (!controls.source) return null;
    if (!this.odds) { // not drawn yet
      controls.applySampling();
      return this.drawWhole();
    }
    return this.guard(async () => {
      const { playing, odds, modified } = this;
      const state = { at: before, odds, modified };
      this.host.onPicture(null); // the link draws the picture before the change
      controls.applySampling();
      try {
        await this.draw(from);
      } catch (error) {
        if (error.name !== "AbortError") await this.restore(state); // else another change follows
        throw error;
      }
      this.saveUndo(state);
      this.modified = from > 0;
      if (!this.modified) this.host.onPicture(controls.source);
      this.host.onStatus(text);
      if (playing) await this.play();
      else await this.showAt(from);
    });
  }

  /** Let Undo return to a picture. */
  saveUndo(state) {
    this.undoStack.push(state);
    if (this.undoStack.length > UNDO_STEPS) this.undoStack.shift();
    this.showButtons();
  }

  /** Return to the picture before a change. */
  async restore({ at, odds, modified }) {
    const { controls, host, player } = this;
    this.halt();
    this.abort.abort();
    this.abort = new AbortController();
    Object.assign(this, { odds, modified });
    odds.signal = this.abort.signal;
    controls.restore(odds.source);
    player.load(odds.picture);
    host.onStatus("");
    host.onPicture(modified ? null : odds.source);
    await this.showAt(at);
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
      this.odds.prefetch(at + 1, this.controls.guided);
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
    if (this.bars.pixel !== at || this.bars.marked) await this.show(at);
    this.odds.prefetch(at + 1, this.controls.guided);
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
    this.host.onStatus(`${integerFormat.format(this.total)} pixels are drawn.`);
  }

  async showLast() {
    await this.load(this.total - 1);
    this.bars.show(true);
    this.say(`The last pixel is ${this.bars.describe()}.`);
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
    const { bars, player: { picture }, model: { channels } } = this;
    if (bars.pixel === null) return;
    const p = bars.pixel;
    picture.values[p * channels + channel] = value;
    const text = `You chose ${bars.describe([...picture.values.subarray(p * channels, (p + 1) * channels)])}.`;
    this.move(p + 1);
    await this.redraw(p + 1, p, text);
  }

  /** Move to a position, and paint the pixels before it. */
  move(position) {
    this.at = position;
    this.player.seek(position);
  }

  /** Show the bars of pixel `p`, which is not painted yet. */
  async show(p) {
    this.move(p);
    if (!(await this.load(p)) || this.at !== p) return;
    this.bars.show(false);
    this.say(this.bars.next);
  }

  /** Show a sentence above the bars. Screen readers read it aloud unless pixels follow each other. */
  say(text) {
    this.bars.say(text, !this.playing);
  }

  /** Show the bars of the next pixel, or of the last one if the picture is complete. */
  showAt(position) {
    return position < this.total ? this.show(position) : this.showLast();
  }

  /** Load the distributions of pixel `p`; return false if another one was asked for meanwhile. */
  async load(p) {
    const { odds } = this;
    this.wanted = p;
    const answer = await odds.fetch(p, this.controls.guided);
    if (this.wanted !== p) return false;
    this.bars.setPixel(p, answer, odds.valuesAt(p));
    if (this.waited) this.host.onStatus(""); // the server has answered
    this.waited = false;
    return true;
  }

  /** Show the bars of pixel `p` and its value once they arrive, unless others are on their way. */
  follow(p) {
    if (this.following) return;
    this.following = true;
    this.guard(async () => (await this.load(p)) && this.showRoll()).finally(() => { this.following = false; });
  }

  /** Mark the value that the dice chose, and paint the pixel. */
  mark() {
    this.showRoll();
    this.move(this.bars.pixel + 1);
  }

  showRoll() {
    this.bars.show(true);
    this.say(`The dice say ${this.bars.describe()}.`);
  }

  onMove(position) {
    if (!this.model) return;
    if (this.playing && this.player.playing) { // "Roll all the rest"
      this.at = position;
      if (position) this.follow(position - 1);
    }
    const { source } = this.controls;
    const [shown, total] = [position, this.total].map(integerFormat.format);
    this.counter.textContent = `${shown} of ${total} pixels`
      + `${position && source?.label ? `, ${drawnAs(source.label)}` : ""}`;
    this.showButtons();
  }

  /** Reshape the bars while a slider moves. */
  onDrag() {
    const { bars } = this;
    if (!bars.answer) return;
    if (this.controls.guided && !bars.answer.unconditional) {
      this.guard(async () => (await this.load(this.wanted)) && bars.draw());
    }
    bars.draw();
  }

  /** Enable the buttons that make sense now. */
  showButtons(drawing = false) {
    if (!this.buttons) return;
    const { play, back, roll, finish, undo } = this.buttons;
    const done = this.model && this.at === this.total;
    const ready = Boolean(this.odds) && !drawing;
    play.textContent = this.playing ? "Pause" : "Play";
    play.disabled = roll.disabled = finish.disabled = !ready || done;
    back.disabled = !ready || !this.at;
    undo.hidden = !this.undoStack.length;
    undo.disabled = !ready;
  }
}
