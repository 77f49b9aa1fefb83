/** A sheet of images being drawn: one request, or several, a row each. */

import { toHash } from "./address.js";
import { explain } from "./api.js";
import { GridToolbar } from "./grid-toolbar.js";
import { titleOf } from "./gallery.js";
import { checkShape } from "./pixels.js";
import { StatusPanel } from "./status.js";
import { ShareBar } from "./share.js";
import { follow } from "./stream.js";
import { Tile, givenTile, heading } from "./tile.js";
import { whole } from "./format.js";

const AT_ONCE = 3; // requests; a browser has six connections to a server
const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** One view's drawing: at most one runs at a time. */
export class ImageGrid {
  /**
   * @param {HTMLElement} view holds the sheet, the report, the cancel button and the share bar
   * @param {object} viewer shows an image that was clicked
   * @param {HTMLElement} form holds the cancel button
   */
  constructor(view, viewer, form = view) {
    this.list = view.querySelector(".image-grid");
    this.report = new StatusPanel(view.querySelector("[data-report]"));
    this.cancelButton = form.querySelector("[data-cancel]");
    this.viewer = viewer;
    this.arrange = new GridToolbar(this.list, (sentence) => this.report.complain(sentence));
    this.share = new ShareBar(view.querySelector("[data-share]"));
    this.tiles = [];
    this.cancelButton.addEventListener("click", () => this.finish());
  }

  /** Cancel what the server still draws, or show at once what it has drawn. */
  finish() {
    if (!this.facts) {
      this.cancel();
      return;
    }
    for (const { player } of this.tiles) {
      player.rate = Infinity;
      player.play();
    }
  }

  /** Stop the drawing that runs, if one does. */
  cancel() {
    this.abort?.abort();
  }

  /** Show nothing, and stop what runs: its model is not looked at any more. */
  clear() {
    this.cancel();
    this.abort = null;
    for (const { player } of this.tiles) player.stop();
    this.tiles = [];
    this.list.replaceChildren();
    this.arrange.offer(null);
    this.report.clear();
    this.share.offer(null);
    this.busy(false);
  }

  /**
   * Draw, and show it.
   *
   * @param {object} job parts (requests: title, model, fields, link, and open(signal), which sends
   *   it), pace, given (a picture), reveal (scroll to it), link
   */
  async run(job) {
    this.cancel();
    const abort = new AbortController();
    Object.assign(this, { abort, job, facts: null, done: [] });
    this.lay(job);
    this.share.offer(job.link, job.parts.length === 1);
    this.busy(true);
    this.report.clear();
    this.report.tell(`Drawing ${count(this.tiles.length)} …`);
    if (job.reveal) this.report.reveal();
    const began = performance.now();
    try {
      await this.drawAll(abort);
      if (this.abort === abort) this.drawn((performance.now() - began) / 1000);
    } catch (error) {
      if (this.abort !== abort) return; // another drawing has taken its place
      const cancelled = abort.signal.aborted;
      abort.abort(error); // the other rows'
      this.stop();
      if (cancelled) this.report.tell("Cancelled. What was drawn stays.");
      else this.report.complain(explain(error));
    }
  }

  /** Send every part's request, a few at once. */
  async drawAll(abort) {
    const waiting = [...this.job.parts];
    const work = async () => {
      for (let part = waiting.shift(); part; part = waiting.shift()) {
        const tiles = this.tiles.filter((tile) => tile.part === part);
        await follow(
          () => part.open(abort.signal),
          (event) => this.abort === abort && this.hear(event, tiles),
          (sentence) => this.abort === abort && this.report.tell(sentence),
          abort.signal,
        );
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  }

  /** Make an empty tile for each image to come, larger where they are few. */
  lay(job) {
    for (const { player } of this.tiles) player.stop();
    this.tiles = [];
    const on = { moved: () => this.moved(), open: (tile) => this.viewer.open(tile, this.tiles) };
    const items = job.parts.flatMap((part) => {
      const tiles = Array.from({ length: part.fields.n }, (_, k) =>
        new Tile(this.tiles.length + k, part, job, on));
      this.tiles.push(...tiles);
      return [...(part.title ? [heading(part.title)] : []), ...tiles.map(({ element }) => element)];
    });
    if (job.given) items.unshift(givenTile(job.given));
    const n = this.tiles.length;
    this.list.dataset.size = n > 24 ? "small" : n > 6 ? "medium" : n > 2 ? "large" : "huge";
    const columns = job.parts.length > 1 ? job.parts[0].fields.n : null;
    this.list.classList.toggle("comparison", columns !== null);
    this.list.style.setProperty("--columns", columns);
    this.list.replaceChildren(...items);
    this.arrange.offer(null);
  }

  /** Take in one event of a part's stream. */
  hear({ name, data }, tiles) {
    if (name === "started") checkShape(data, tiles[0].part.model);
    if (name === "started" || name === "waiting") {
      if (data.queue_position > 0) {
        const ahead = data.queue_position;
        this.report.tell(`Waiting: ${ahead} image${ahead === 1 ? " is" : "s are"} ahead of yours …`);
      }
    } else if (name === "pixels") {
      for (const { index, position, values } of data.updates) tiles[index].write(position, values);
      this.progress();
    } else if (name === "image" && data.finish_reason === "length") { // others ended halfway
      tiles[data.index].finish(data);
    } else if (name === "completed") {
      this.done.push(data);
    }
  }

  /** The server has drawn everything; not all of it need be shown yet. */
  drawn(seconds) {
    const { done, tiles } = this;
    const pixels = done.reduce((sum, { usage }) => sum + usage.pixels, 0);
    const took = done.length === 1 ? done[0].usage.seconds : seconds;
    const rate = pixels / took;
    const slow = tiles[0].player.rate < rate / tiles.length / 2;
    this.facts = `${count(tiles.length)} in ${rough.format(took)} s: ${whole.format(pixels)} pixels, `
      + `${rough.format(rate)} a second${slow ? " (shown slower, to be watched)" : ""}.`;
    this.cancelButton.textContent = "Show all";
    if (done.some(({ warnings }) => warnings.length)) { // of looking ahead alone
      this.facts += " At some pixel few tries fitted what follows: more tries, or a smaller gap, do better.";
    }
    this.progress();
  }

  moved() {
    this.frame ??= requestAnimationFrame(() => { // once for all that move in a frame
      this.frame = null;
      this.progress();
    });
  }

  /** Report how far all images are, and at the end what they took. */
  progress() {
    if (!this.tiles.length || this.stopped) return;
    let shown = 0;
    for (const { player } of this.tiles) shown += player.position / player.total;
    const done = shown / this.tiles.length;
    if (this.facts && done === 1) {
      if (!this.cancelButton.hidden) this.finished();
      this.busy(false);
      this.report.tell(this.facts);
    } else if (done > 0) {
      this.report.tell(`Drawing ${count(this.tiles.length)} …`, done);
    }
  }

  finished() {
    const { tiles, job: { link } } = this;
    const [{ player: { canvas }, part: { fields } }] = tiles;
    this.arrange.offer(tiles);
    this.viewer.gallery.add(toHash(link.view, link.fields), canvas, titleOf(fields));
  }

  /** Let every tile show at once what arrived, and say which are not whole. */
  stop() {
    this.busy(false);
    this.stopped = true;
    for (const tile of this.tiles) tile.stop();
  }

  busy(yes) {
    this.stopped = false;
    if (!yes && document.activeElement === this.cancelButton) { // which is about to be hidden
      this.cancelButton.parentElement.querySelector("[type=submit]").focus();
    }
    this.cancelButton.hidden = !yes;
    this.cancelButton.textContent = "Cancel";
    this.list.ariaBusy = String(yes);
  }
}

const count = (n) => (n === 1 ? "1 image" : `${n} images`);
