/** Grid of images that are being drawn: one request, or one per row. */

import { toHash } from "./address.js";
import { describeError } from "./api.js";
import { integerFormat } from "./format.js";
import { describeDrawing } from "./gallery.js";
import { GridToolbar } from "./grid-toolbar.js";
import { checkShape } from "./pixels.js";
import { ShareBar } from "./share.js";
import { StatusPanel } from "./status.js";
import { followGeneration } from "./stream.js";
import { Tile, createHeading, createInputTile, paceToRate } from "./tile.js";

const MAX_REQUESTS = 3; // at once; a browser opens at most six connections to a server
const roughFormat = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** The images of one view. At most one job runs at a time. */
export class ImageGrid {
  /**
   * @param {HTMLElement} view contains the grid, the status panel and the share bar
   * @param {object} page the `Page` of app.js
   * @param {HTMLElement} form contains the cancel button
   */
  constructor(view, page, form = view) {
    this.list = view.querySelector(".image-grid");
    this.status = new StatusPanel(view.querySelector("[data-status-panel]"));
    this.cancelButton = form.querySelector("[data-cancel]");
    this.viewer = page.viewer; // opens a clicked image
    this.toolbar = new GridToolbar(this.list, page.maxImages, (text) => {
      if (text) this.status.showError(text);
      else this.status.clearError();
    });
    this.tiles = [];
    this.share = new ShareBar(view.querySelector("[data-share]"), () => this.tiles
      .filter(({ result }) => result).map(({ player, request, result }) =>
        ({ ...player.picture, id: request.model.id, drawn: result.png }))
      .filter(({ id }, _, [first]) => id === first.id)); // a comparison may have several models
    this.cancelButton.addEventListener("click", () => this.cancelOrShowAll());
  }

  /** Cancel the job; if the server has drawn everything already, show it all at once. */
  cancelOrShowAll() {
    if (!this.summary) {
      this.cancel();
      return;
    }
    for (const { player } of this.tiles) {
      player.rate = Infinity;
      player.play();
    }
  }

  /** Cancel the running job, if any. */
  cancel() {
    this.abort?.abort();
  }

  /** Cancel the job and empty the grid. */
  clear() {
    this.cancel();
    this.abort = null;
    for (const { player } of this.tiles) player.stop();
    this.tiles = [];
    this.list.replaceChildren();
    this.toolbar.setTiles(null);
    this.status.clear();
    this.share.setLink(null);
    this.setBusy(false);
  }

  /**
   * Draw images and show them.
   *
   * @param {object} job
   *   `requests`: one per row, each with title, model, link, and what `followGeneration` needs;
   *   `secondsPerImage`: duration of the animation, 0 for full speed;
   *   `input`: the picture to complete, if any;
   *   `scroll`: scroll to the status panel;
   *   `companion`: the element above the panel that stays in view with it, if any;
   *   `automatic`: not asked for by the visitor, so that the gallery does not list it;
   *   `link`: the link of all rows together
   */
  async run(job) {
    this.cancel();
    const abort = new AbortController();
    Object.assign(this, { abort, job, summary: null, completedEvents: [] });
    this.createTiles(job);
    this.share.setLink(null); // until a picture is finished
    this.setBusy(true);
    this.status.clear();
    this.status.show(`Drawing ${countImages(this.tiles.length)} …`);
    if (job.scroll) this.status.scrollIntoView(job.companion);
    const start = performance.now();
    try {
      await this.sendAll(abort);
      if (this.abort === abort) this.onAllDrawn((performance.now() - start) / 1000);
    } catch (error) {
      if (this.abort !== abort) return; // another job has replaced this one
      const cancelled = abort.signal.aborted;
      abort.abort(error); // the requests of the other rows
      this.stop();
      if (cancelled) this.status.show("Cancelled. The pixels drawn so far stay.");
      else this.status.showError(describeError(error));
    }
  }

  /** Send all requests, a few at a time. */
  async sendAll(abort) {
    const queue = [...this.job.requests];
    const work = async () => {
      for (let request = queue.shift(); request; request = queue.shift()) {
        const tiles = this.tiles.filter((tile) => tile.request === request);
        await followGeneration(
          request,
          (event) => this.abort === abort && this.handleEvent(event, tiles),
          (text) => this.abort === abort && this.status.show(text),
          abort.signal,
        );
      }
    };
    await Promise.all(Array.from({ length: MAX_REQUESTS }, work));
  }

  /** Create an empty tile per image; the fewer the tiles, the larger they are. */
  createTiles(job) {
    for (const { player } of this.tiles) player.stop();
    this.tiles = [];
    const handlers = {
      onMove: () => this.scheduleProgress(),
      onOpen: (tile) => this.viewer.open(tile, this.tiles),
    };
    const items = job.requests.flatMap((request) => {
      const tiles = Array.from({ length: request.fields.n }, (_, k) =>
        new Tile(this.tiles.length + k, request, job, handlers));
      this.tiles.push(...tiles);
      const elements = tiles.map(({ element }) => element);
      return request.title ? [createHeading(request.title), ...elements] : elements;
    });
    if (job.input) items.unshift(createInputTile(job.input));
    const n = this.tiles.length;
    this.list.dataset.size = n > 24 ? "small" : n > 6 ? "medium" : n > 2 ? "large" : "huge";
    const columns = job.requests.length > 1 ? job.requests[0].fields.n : null;
    this.list.classList.toggle("comparison", columns !== null);
    this.list.style.setProperty("--columns", columns);
    this.list.replaceChildren(...items);
    this.toolbar.setTiles(null);
  }

  /** Handle an event of one request's stream. */
  handleEvent({ name, data }, tiles) {
    if (name === "started") checkShape(data, tiles[0].request.model);
    if (name === "started" || name === "waiting") {
      const { queue_position: ahead, estimated_seconds: seconds } = data;
      if (ahead > 0) {
        const time = seconds ? ` It may take ${Math.ceil(seconds)} s.` : "";
        this.status.show(`Waiting: ${ahead} image${ahead === 1 ? " is" : "s are"} ahead of yours.${time}`);
      }
    } else if (name === "pixels") {
      for (const { index, position, values } of data.updates) tiles[index].write(position, values);
      this.updateProgress();
    } else if (name === "image" && data.finish_reason === "length") { // complete, not cancelled
      tiles[data.index].finish(data);
      const { job: { link, requests } } = this;
      if (!this.share.link) this.share.setLink(link, requests.length === 1);
    } else if (name === "completed") {
      this.completedEvents.push(data);
    }
  }

  /** Prepare the summary, once the server has drawn everything; players may still be playing. */
  onAllDrawn(elapsed) {
    const { completedEvents: events, tiles } = this;
    const pixels = events.reduce((sum, { usage }) => sum + usage.pixels, 0);
    const seconds = events.length === 1 ? events[0].usage.seconds : elapsed;
    const rate = pixels / seconds;
    const slowed = tiles[0].player.rate < rate / tiles.length / 2;
    this.summary = `${countImages(tiles.length)} in ${roughFormat.format(seconds)} s: `
      + `${integerFormat.format(pixels)} pixels, ${roughFormat.format(rate)} a second`
      + `${slowed ? " (shown more slowly, so that you can watch)" : ""}.`;
    this.cancelButton.textContent = "Show all";
    if (events.some(({ warnings }) => warnings.length)) { // only looking ahead gives warnings
      this.summary += " Few tries fitted the part below the gap. Use more tries, or make the gap smaller.";
    }
    this.updateProgress();
  }

  /** Update the progress once per animation frame, even if many tiles move. */
  scheduleProgress() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.updateProgress();
    });
  }

  /** Show the share of pixels shown, and the summary at the end. */
  updateProgress() {
    if (!this.tiles.length || this.stopped) return;
    let shown = 0;
    for (const { player } of this.tiles) shown += player.position / player.total;
    const share = shown / this.tiles.length;
    if (this.summary && share === 1) {
      if (!this.cancelButton.hidden) this.onAllShown();
      this.setBusy(false);
      this.status.show(this.summary);
    } else if (share > 0) {
      this.status.show(`Drawing ${countImages(this.tiles.length)} …`, share);
    }
  }

  onAllShown() {
    const { tiles, job: { link, automatic } } = this;
    const [{ player: { canvas }, result: { label } }] = tiles;
    this.toolbar.setTiles(tiles);
    if (!automatic) this.viewer.gallery.add(toHash(link.view, link.fields), canvas, describeDrawing(link, label));
  }

  /** Set the duration of the running animation. */
  setPace(secondsPerImage) {
    for (const { player } of this.tiles) player.rate = paceToRate(player.picture.shape, secondsPerImage);
  }

  /** Show everything received so far, and mark the unfinished tiles. */
  stop() {
    this.setBusy(false);
    this.stopped = true;
    for (const tile of this.tiles) tile.stop();
  }

  setBusy(busy) {
    this.stopped = false;
    if (!busy && document.activeElement === this.cancelButton) { // hiding it would lose the focus
      this.cancelButton.parentElement.querySelector("[type=submit]").focus();
    }
    this.cancelButton.hidden = !busy;
    this.cancelButton.textContent = "Cancel";
    this.list.ariaBusy = String(busy);
  }
}

const countImages = (n) => (n === 1 ? "1 image" : `${n} images`);
