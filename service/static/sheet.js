/** A sheet of images being drawn, and the line that reports how it goes. */

import { explain } from "./api.js";
import { area } from "./pixels.js";
import { Player, calm } from "./player.js";
import { ShareBar } from "./share.js";
import { follow } from "./stream.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** One view's drawing: at most one runs at a time. */
export class Sheet {
  /**
   * @param {HTMLElement} view holds the sheet, the report, the cancel button and the share bar
   * @param {object} viewer shows an image that was clicked
   * @param {HTMLElement} form holds the cancel button
   */
  constructor(view, viewer, form = view) {
    this.list = view.querySelector(".sheet");
    this.report = view.querySelector("[data-report]");
    this.cancelButton = form.querySelector("[data-cancel]");
    this.viewer = viewer;
    this.share = new ShareBar(view.querySelector("[data-share]"));
    this.items = [];
    this.cancelButton.addEventListener("click", () => this.finish());
  }

  /** Cancel what the server still draws, or show at once what it has drawn. */
  finish() {
    if (!this.facts) {
      this.cancel();
      return;
    }
    for (const { player } of this.items) {
      player.rate = Infinity;
      player.play();
    }
  }

  /** Stop the drawing that runs, if one does. */
  cancel() {
    this.abort?.abort(new DOMException("cancelled", "AbortError"));
  }

  /** Show nothing, and stop what runs: its model is not looked at any more. */
  clear() {
    this.cancel();
    this.abort = null;
    for (const { player } of this.items) player.stop();
    this.items = [];
    this.list.replaceChildren();
    this.report.replaceChildren();
    this.share.offer(null);
    this.busy(false);
  }

  /**
   * Draw, and show it.
   *
   * @param {object} job model, fields (what was asked: n, seed, label …), pace, given (a picture),
   *   reveal (scroll to it), link and open(signal), which sends the request
   */
  async run(job) {
    this.cancel();
    const abort = new AbortController();
    this.abort = abort;
    this.job = job;
    this.facts = null;
    this.lay(job);
    this.share.offer(job.link);
    this.busy(true);
    this.say(`Drawing ${count(job.fields.n)} …`);
    if (job.reveal) this.reveal();
    try {
      await follow(
        () => job.open(abort.signal),
        (event) => this.abort === abort && this.hear(event),
        (sentence) => this.abort === abort && this.say(sentence),
        abort.signal,
      );
    } catch (error) {
      if (this.abort !== abort) return; // another drawing has taken its place
      this.stop();
      if (abort.signal.aborted) this.say("Cancelled. What was drawn stays.");
      else this.complain(explain(error));
    }
  }

  /** Scroll to the images where they begin in the lower half of the screen, or beyond. */
  reveal() {
    if (this.report.getBoundingClientRect().top < innerHeight / 2) return;
    this.report.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  }

  /** Make an empty tile for each image to come, larger where they are few. */
  lay({ model, fields: { n }, pace, given }) {
    for (const item of this.items) item.player.stop();
    this.items = [];
    const tiles = Array.from({ length: n }, (_, index) => this.tile(index, model, pace, given));
    if (given) tiles.unshift(givenTile(given));
    this.list.dataset.size = n > 24 ? "small" : n > 6 ? "medium" : "large";
    this.list.replaceChildren(...tiles);
  }

  tile(index, model, pace, given) {
    const tile = document.createElement("li");
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    const caption = document.createElement("small");
    button.type = "button";
    button.append(canvas);
    tile.append(button, caption);
    caption.textContent = "waiting";
    const player = new Player(canvas, () => this.moved(item));
    const item = { index, player, caption, button, result: null, job: this.job, sheet: this };
    this.items.push(item);
    player.rate = pace && !calm.matches ? area(model) / pace : Infinity;
    player.begin(model, given);
    button.addEventListener("click", () => item.result && this.viewer.open(item));
    this.name(item);
    return tile;
  }

  /** Take in one event of the stream. */
  hear({ name, data }) {
    if (name === "started") {
      for (const { index, seed } of data.images) this.items[index].seed = seed;
      if (data.queue_position > 0) {
        const ahead = data.queue_position;
        this.say(`Waiting: ${ahead} image${ahead === 1 ? " is" : "s are"} ahead of yours …`);
      }
    } else if (name === "pixels" && !calm.matches) {
      for (const { index, position, values } of data.updates) {
        this.items[index].player.write(position, values);
      }
      this.progress();
    } else if (name === "pixels") {
      this.keep(data.updates); // shown whole, once finished
    } else if (name === "image" && data.finish_reason === "length") { // others ended halfway
      const item = this.items[data.index];
      item.result = data;
      if (item.kept) item.kept.splice(0).forEach((u) => item.player.write(u.position, u.values));
      this.moved(item);
    } else if (name === "completed") {
      this.facts = data.usage;
      this.cancelButton.textContent = "Show all";
      this.progress();
    }
  }

  keep(updates) {
    for (const update of updates) (this.items[update.index].kept ??= []).push(update);
  }

  /** A tile shows more than before. */
  moved(item) {
    const { player, caption, result } = item;
    if (result && player.position === player.total) {
      const { seed, bits_per_dim: bits } = result;
      caption.textContent = `seed ${seed}`;
      if (bits !== null) caption.append(document.createElement("br"), `${bits.toFixed(2)} bits/dim`);
    } else if (!this.stopped && player.position > 0 && caption.textContent !== "drawing") {
      caption.textContent = "drawing";
    }
    this.name(item);
    this.frame ??= requestAnimationFrame(() => { // once for all that move in a frame
      this.frame = null;
      this.progress();
    });
  }

  name(item) {
    const done = item.result && item.player.position === item.player.total;
    const state = done ? `seed ${item.result.seed}: enlarge` : item.caption.textContent;
    const name = `Image ${item.index + 1}, ${state}`;
    if (item.button.ariaLabel !== name) item.button.ariaLabel = name;
  }

  /** Report how far all images are, and at the end what they took. */
  progress() {
    if (!this.items.length || this.stopped) return;
    let shown = 0;
    for (const { player } of this.items) shown += player.position / player.total;
    const done = shown / this.items.length;
    if (this.facts && done === 1) {
      this.busy(false);
      this.say(this.summary());
    } else if (done > 0) {
      this.say(`Drawing ${count(this.items.length)} …`, done);
    }
  }

  summary() {
    const { seconds, pixels, pixels_per_second: rate } = this.facts;
    const slow = this.items[0].player.rate < rate / this.items.length / 2;
    return `${count(this.items.length)} in ${rough.format(seconds)} s: `
      + `${whole.format(pixels)} pixels, ${rough.format(rate)} a second`
      + (slow ? " (shown slower, to be watched)." : ".");
  }

  /** Let every tile show at once what arrived, and say which are not whole. */
  stop() {
    this.busy(false);
    this.stopped = true;
    for (const item of this.items) {
      item.player.rate = Infinity;
      if (!item.result) item.caption.textContent = item.player.available ? "unfinished" : "not drawn";
      this.name(item);
    }
  }

  busy(yes) {
    this.stopped = false;
    this.cancelButton.hidden = !yes;
    this.cancelButton.textContent = "Cancel";
    this.list.ariaBusy = String(yes);
  }

  /** Say one sentence, with a bar where something is under way. */
  say(sentence, done = null) {
    this.report.classList.remove("problem");
    let line = this.report.querySelector("[role=status]");
    if (!line) {
      line = document.createElement("p");
      line.setAttribute("role", "status");
      const bar = document.createElement("div");
      bar.className = "progress";
      bar.append(document.createElement("span"));
      this.report.replaceChildren(line, bar);
    }
    if (line.textContent !== sentence) line.textContent = sentence;
    const bar = this.report.querySelector(".progress");
    bar.hidden = done === null;
    if (done !== null) bar.style.setProperty("--done", String(done));
  }

  /** Say what went wrong. */
  complain(sentence) {
    const line = document.createElement("p");
    line.setAttribute("role", "alert");
    line.textContent = sentence;
    this.report.classList.add("problem");
    this.report.replaceChildren(line);
  }
}

const count = (n) => (n === 1 ? "1 image" : `${n} images`);

/** Show beside the completions what they were given. */
function givenTile(given) {
  const tile = document.createElement("li");
  const frame = document.createElement("div");
  const canvas = document.createElement("canvas");
  const caption = document.createElement("small");
  tile.className = "given";
  canvas.setAttribute("role", "img");
  canvas.ariaLabel = "What was given";
  frame.append(canvas);
  caption.textContent = "what was given";
  tile.append(frame, caption);
  const player = new Player(canvas);
  player.cursor = false;
  player.begin(given.shape, given);
  return tile;
}
