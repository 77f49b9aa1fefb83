/** The view "Look inside": the bits of every pixel, and the model's prediction for one of them. */

import { describeError, drawPicture, scoreImages } from "./api.js";
import { decodeFile } from "./decode.js";
import { parseSeed, randomSeed, resolveClass, setRange, usesGuidance } from "./fields.js";
import { connectFileButton } from "./file-drop.js";
import { drawnAs, integerFormat } from "./format.js";
import { mostSurprising, paintHeatmap, scaleBits } from "./heatmap.js";
import { PixelCanvas } from "./pixel-canvas.js";
import { fromBase64Url, pixelCount, toBase64Url, toPng } from "./pixels.js";
import { Player, reducedMotion } from "./player.js";
import { Prediction } from "./prediction.js";
import { SAMPLING, samplingFields, samplingOf } from "./sampling-controls.js";
import { hasShareDialog, shareLink } from "./share.js";
import { StatusPanel } from "./status.js";
import { followGeneration } from "./stream.js";
import { WhatIf } from "./whatif.js";

const SURPRISES = 12;
const byId = (id) => document.getElementById(id);

/** Shows one picture: its pixels, their bits, and the prediction at one pixel. */
export class InsideView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.view = byId("inside");
    this.form = byId("inside-form");
    this.status = new StatusPanel(this.view.querySelector(".actions [data-status-panel]"));
    this.whatIf = new WhatIf(page, () => this.prediction.onSamplingChange());
    this.prediction = new Prediction({
      getSampling: () => this.whatIf.sampling.values,
      getChosen: () => (this.whatIf.target?.chosen ? this.whatIf.chosen : []),
      getBits: (at) => this.bits?.[at],
      onPick: (channel, value) => this.whatIf.choose(channel, value),
      onWait: (text) => { this.waited = true; this.status.show(text); },
      onAnswer: () => this.onAnswer(),
      onError: (error) => this.showError(describeError(error), true),
    });
    const handlers = { onPick: (p) => this.goTo(p), onRelease: () => this.updateLink() };
    this.canvases = [
      new PixelCanvas(byId("inside-picture"), handlers),
      new PixelCanvas(byId("inside-heatmap"), handlers),
    ];
    this.player = new Player(byId("inside-picture"), (p) => this.onMove(p));
    this.player.ghost = true;
    this.addListeners();
  }

  addListeners() {
    const { position } = this.form.elements;
    const onClick = (id, act) => byId(id).addEventListener("click", act);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    position.addEventListener("input", () => this.goTo(Number(position.value)));
    position.addEventListener("change", () => this.updateLink());
    position.addEventListener("keydown", (event) => {
      const rows = { PageUp: -1, PageDown: 1 }[event.key];
      if (!rows) return;
      event.preventDefault();
      this.goTo(Number(position.value) + rows * this.model.width);
      this.updateLink();
    });
    byId("inside-speed").addEventListener("change", () => this.updateSpeed());
    onClick("inside-new", () => this.drawNew(this.randomSource()));
    onClick("inside-play", () => (this.player.playing ? this.pause() : this.play()));
    byId("whatif-form").addEventListener("submit", () => { // captured: before WhatIf reads the pixel
      this.goTo(this.at);
      this.updateLink();
    }, true);
    onClick("inside-surprise", () => this.goToNextSurprise());
    if (hasShareDialog()) byId("inside-link").textContent = "Share the link …";
    onClick("inside-link", async () => {
      if (await shareLink({ view: "inside", fields: this.linkFields })) {
        this.status.show("Link copied.");
      }
    });
    connectFileButton(byId("inside-upload"), byId("inside-file"), (file) => this.openFile(file));
  }

  /** Switch to a model, without a picture. */
  setModel(model) {
    this.model = model;
    this.form.elements.position.max = pixelCount(model) - 1;
    this.prediction.setModel(model);
    this.whatIf.setModel(model);
    this.clear({});
  }

  /** Prepare for another picture; the link fields `source` draw it again. */
  clear(source) {
    this.abort?.abort();
    this.abort = new AbortController();
    this.source = source;
    this.title = this.cost = "";
    this.bits = null;
    byId("inside-surprise").disabled = true; // until the bits are known
    this.selected = this.pausedAt = null; // the pixel that the visitor selected, and that of a pause
    this.transientError = null;
    this.drawing = false;
    this.player.stop();
    this.prediction.clear();
    byId("heatmap-max").textContent = "";
    for (const { canvas } of this.canvases) {
      canvas.width = this.model.width;
      canvas.height = this.model.height;
    }
    this.player.reset(this.model);
    this.whatIf.grid.clear();
    this.status.clear();
  }

  /** Open a link, or draw something new if it names no picture. */
  async open(fields) {
    const seed = parseSeed(fields);
    const position = Number(fields.get("at") ?? NaN);
    const at = Number.isSafeInteger(position) && position >= 0 ? position : null;
    const label = resolveClass(this.model, fields.get("label") ?? "");
    const sampling = samplingOf(this.model, fields); // corrects what is no number
    const options = Object.fromEntries(SAMPLING.filter((name) => fields.has(name))
      .map((name) => [name, sampling[name]]));
    if (label) options.label = label;
    if (fields.has("image")) {
      const image = fields.get("image");
      const picture = await decodeFile(fromBase64Url(image), () => this.model);
      await this.showPicture(picture, "From a link", { image, ...options }, { at });
    } else if (seed !== null && at !== null) {
      const { model } = this;
      const source = { seed, ...options };
      this.clear(source);
      const { signal } = this.abort;
      const picture = await drawPicture(model, source, signal, (text) => this.status.show(text));
      await this.showPicture(picture, sourceTitle(source), source, { at });
    } else {
      await this.drawNew(seed === null ? { ...this.randomSource(), ...options } : { seed, ...options });
    }
  }

  /** Called when the view is shown again. */
  onShow() {
    this.queryPrediction();
  }

  /** Open an image that another view has drawn from a link. */
  async openImage(picture, { view, fields }) {
    this.page.show("inside");
    const { label } = fields;
    const source = view === "draw"
      ? Object.fromEntries(Object.entries(fields).filter(([name]) => ["seed", "label", ...SAMPLING].includes(name)))
      : { image: await toBase64Url(await toPng(picture)), ...(label ? { label } : {}) };
    const title = view === "draw" ? sourceTitle({ label }) : "A picture completed by the model.";
    await this.showPicture(picture, title, source);
  }

  /** Open an image file. */
  async openFile(file) {
    this.page.show("inside");
    this.latestFile = file;
    try {
      const picture = await decodeFile(file, () => this.model);
      const image = await toBase64Url(await toPng(picture));
      if (this.latestFile !== file) return; // another file was opened meanwhile
      if (picture.shape === this.model) {
        await this.showPicture(picture, "Your picture", { image });
      } else {
        await this.openFile(file); // another model was selected meanwhile
      }
    } catch (error) {
      if (this.latestFile === file) this.showError(describeError(error));
    }
  }

  /**
   * Show a finished picture.
   *
   * @param {import("./pixels.js").Picture} picture
   * @param {string} title
   * @param {object} source link fields of the picture
   * @param {object} options
   * @param {number | null} options.at pixel to show; the most surprising one if null
   */
  async showPicture(picture, title, source, { at = null } = {}) {
    this.clear(source);
    this.title = title;
    this.player.load({ ...picture, known: null });
    const first = at ?? Math.floor(this.player.total / 2);
    this.goTo(first);
    this.updateLink(true);
    await this.measure();
    if (at !== null || !this.bits || this.at !== first) return;
    this.goTo(mostSurprising(this.bits, 1)[0]);
    this.updateLink();
  }

  /** Return the fields of a new picture; with a random class if the model uses guidance. */
  randomSource() {
    const { model } = this;
    const seed = randomSeed();
    if (!usesGuidance(model)) return { seed };
    const label = model.classes[Math.floor(Math.random() * model.classes.length)];
    return { seed, ...samplingFields(model, samplingOf(model, new Map()), label) };
  }

  /** Draw a new picture slowly, with the prediction of each pixel. */
  async drawNew(source) {
    this.clear(source);
    this.title = "Being drawn";
    this.drawing = true;
    this.updateLink(true);
    this.updateSpeed();
    if (reducedMotion.matches) this.player.rate = Infinity;
    const { abort } = this;
    try {
      await followGeneration(
        { fields: { model: this.model.id, ...source } },
        (event) => {
          this.player.handleEvent(event);
          if (this.selected !== null) this.player.stop();
        },
        (text) => !abort.signal.aborted && this.status.show(text),
        abort.signal,
      );
      if (abort.signal.aborted) return;
      this.status.clear();
      this.title = sourceTitle(source);
      this.drawing = false;
      await this.measure();
      await this.player.paused();
      if (abort.signal.aborted || !this.bits || this.selected !== null) return;
      this.goTo(mostSurprising(this.bits, 1)[0]); // after the last pixel there is no prediction
      this.updateLink();
    } catch (error) {
      if (abort.signal.aborted) return;
      this.showError(describeError(error));
      this.title = "Not finished";
      this.showCaption();
    } finally {
      if (this.abort === abort) this.drawing = false;
    }
  }

  /** Play from the first pixel, or from the one at which the visitor paused. */
  play() {
    const { player } = this;
    if (!player.available) return;
    this.selected = null;
    this.updateSpeed();
    if (this.pausedAt !== this.at) player.seek(0);
    player.play();
  }

  pause() {
    this.pausedAt = this.at;
    this.goTo(this.at);
  }

  updateSpeed() {
    this.player.rate = Number(byId("inside-speed").value);
  }

  /** Stop at pixel `p`, or at the last one drawn. */
  goTo(p) {
    this.status.show(""); // it is about another pixel
    this.player.stop();
    this.selected = Math.min(Math.max(0, p), this.player.total - 1);
    this.player.seek(this.selected);
  }

  /** Go to the most surprising pixel, then to the next one, wrapping around. */
  goToNextSurprise() {
    if (!this.bits) return;
    const pixels = mostSurprising(this.bits, SURPRISES);
    const rank = (pixels.indexOf(this.at) + 1) % pixels.length;
    this.goTo(pixels[rank]);
    this.updateLink();
    this.status.show(`Surprise ${rank + 1} of ${pixels.length}.`);
  }

  /** The current pixel: the next one to show, or the last one. */
  get at() {
    return Math.min(this.player.position, this.player.total - 1);
  }

  get linkFields() {
    const at = this.selected === null ? {} : { at: this.at };
    return { model: this.model.id, ...this.source, ...at };
  }

  /** Write the link to the address; `push` lets Back return to the picture before. */
  updateLink(push = false) {
    this.page.setLink("inside", this.linkFields, { push });
  }

  /** Fetch the bits of every pixel, and show them. */
  async measure() {
    const { signal } = this.abort;
    try {
      const png = await toPng(this.player.picture);
      const { label } = this.source;
      const [score] = await scoreImages(this.model, png, label, signal, (text) => this.status.show(text));
      if (signal.aborted) return;
      this.status.clear();
      this.bits = score.pixel_bits;
      byId("inside-surprise").disabled = false;
      byId("heatmap-max").textContent = scaleBits(this.bits);
      const uncompressed = 8 * this.player.picture.values.length;
      this.cost = `${score.bits_per_dim.toFixed(3)} bits per value, `
        + `${integerFormat.format(score.bits)} bits instead of ${integerFormat.format(uncompressed)}`;
      this.onMove(this.player.position);
    } catch (error) {
      if (!signal.aborted) this.showError(describeError(error));
    }
  }

  /** Update the view after the player moved. */
  onMove(position) {
    const { at, player, model: { width } } = this;
    const still = !player.playing && !this.drawing;
    this.whatIf.setTarget(player.picture, at, this.source.label);
    const text = `row ${Math.floor(at / width) + 1}, column ${(at % width) + 1}`;
    setRange(this.form.elements.position, at, text);
    this.showCaption();
    byId("inside-play").textContent = player.playing ? "Pause"
      : this.pausedAt === at ? "Continue" : "Replay";
    this.prediction.summaryLine.ariaLive = still ? "polite" : "off";
    for (const canvas of this.canvases) canvas.mark(at);
    this.canvases[0].marker.hidden = !still; // while drawing, the cursor shows the pixel
    if (this.bits) {
      paintHeatmap(byId("inside-heatmap"), this.bits, position, !still && position < player.total);
    }
    this.queryPrediction();
  }

  /** Show what the picture is; its seed and its cost on request. */
  showCaption() {
    const [title, details] = byId("inside-caption").children;
    const { source: { seed }, cost } = this;
    const facts = [seed === undefined ? "" : `Seed ${seed}`, cost].filter(Boolean).join(" · ");
    title.textContent = this.title;
    details.hidden = !facts;
    details.lastElementChild.textContent = facts;
  }

  queryPrediction() {
    if (this.view.hidden) return;
    const { player, at } = this;
    this.prediction.query(player.picture, at, player.available, this.source.label);
  }

  onAnswer() {
    if (this.transientError) this.status.clearError(); // the server answers again
    this.transientError = null;
    if (this.waited) this.status.show("");
    this.waited = false;
    const { at, expected } = this.prediction.answer;
    this.whatIf.suggest(at, expected);
  }

  /** Show an error; a transient one disappears with the next prediction. */
  showError(text, transient = false) {
    if (transient && this.transientError === text) return; // a screen reader would read it aloud again
    this.transientError = transient ? text : null;
    this.status.showError(text);
    if (!transient) this.status.scrollIntoView();
  }
}

const sourceTitle = ({ label }) => (label ? `A picture ${drawnAs(label)}.` : "A picture drawn by the model.");
