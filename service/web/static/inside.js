/** The view "Look inside": what surprised the model, and what it expects next. */

import { drawn, explain, post, score } from "./api.js";
import { chooseFile } from "./file-drop.js";
import { Prediction } from "./prediction.js";
import { given, guides, noSeed, randomSeed, seedOf, setRange } from "./fields.js";
import { mostBits, paintHeat, surprises } from "./heatmap.js";
import { area, fromFile, fromText, toPng, toText } from "./pixels.js";
import { PixelCanvas } from "./pixel-canvas.js";
import { Player, calm } from "./player.js";
import { StatusPanel } from "./status.js";
import { shareLink } from "./share.js";
import { follow } from "./stream.js";
import { WhatIf } from "./whatif.js";
import { whole } from "./format.js";

const SURPRISES = 12;
const byId = (id) => document.getElementById(id);

/** Shows one picture: its pixels, their bits, and the distribution at a place. */
export class InsideView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.view = byId("inside");
    this.form = byId("inside-form");
    this.report = new StatusPanel(this.view.querySelector(".actions [data-report]"));
    this.whatIf = new WhatIf(page.viewer, () => this.expectation.turned());
    this.expectation = new Prediction({
      values: () => this.whatIf.shaping.values,
      chosen: () => this.whatIf.chosen,
      pick: (channel, value) => this.whatIf.pick(channel, value),
      changed: () => this.answered(),
      measured: (at) => this.bits?.[at],
      failed: (error) => this.complain(explain(error), true),
    });
    const on = { touch: (p) => this.goTo(p), release: () => this.keepLink() };
    this.plates = [new PixelCanvas(byId("inside-picture"), on), new PixelCanvas(byId("inside-heat"), on)];
    this.player = new Player(byId("inside-picture"), (p) => this.moved(p));
    this.player.ghost = true;
    this.listen();
  }

  listen() {
    const { position } = this.form.elements;
    const click = (id, act) => byId(id).addEventListener("click", act);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    position.addEventListener("input", () => this.goTo(Number(position.value)));
    position.addEventListener("change", () => this.keepLink());
    position.addEventListener("keydown", (event) => {
      const rows = { PageUp: -1, PageDown: 1 }[event.key];
      if (!rows) return;
      event.preventDefault();
      this.goTo(Number(position.value) + rows * this.model.width);
      this.keepLink();
    });
    byId("inside-speed").addEventListener("change", () => this.setSpeed());
    click("inside-new", () => this.drawNew(this.anything()));
    click("inside-play", () => (this.player.moving ? this.goTo(this.at) : this.replay()));
    byId("whatif-form").addEventListener("submit", () => { // it goes on from where the picture is now
      this.goTo(this.at);
      this.keepLink();
    }, true);
    click("inside-surprise", () => this.nextSurprise());
    click("inside-link", async () => {
      if (await shareLink({ view: "inside", fields: this.linkFields })) this.say("Link copied.");
    });
    chooseFile(byId("inside-upload"), byId("inside-file"), (file) => this.bring(file));
  }

  /** Take a model, and forget the picture of another. */
  use(model) {
    this.model = model;
    this.form.elements.position.max = area(model) - 1;
    this.expectation.use(model);
    this.whatIf.use(model);
    this.clear({});
  }

  /** Make room for another picture, made again by the fields of `source`. */
  clear(source) {
    this.abort?.abort();
    this.abort = new AbortController();
    this.source = source;
    this.title = "";
    this.bits = null;
    byId("inside-surprise").disabled = true; // until it is known what each pixel cost
    this.chosenPlace = null;
    this.drawing = false;
    this.player.stop();
    this.expectation.clear();
    byId("heat-max").textContent = "";
    for (const { canvas } of this.plates) {
      canvas.width = this.model.width;
      canvas.height = this.model.height;
    }
    this.player.begin(this.model);
    this.whatIf.grid.clear();
    this.report.clear();
  }

  /** Show what a link says, or draw something new. */
  async open(fields) {
    const seed = seedOf(fields);
    if (fields.has("seed") && seed === null) {
      this.complain(noSeed(fields.get("seed")));
      return;
    }
    const place = Number(fields.get("at") ?? NaN);
    const at = Number.isSafeInteger(place) && place >= 0 ? place : null;
    const made = Object.fromEntries(["label", "temperature", "guidance", "top_p"]
      .filter((name) => fields.get(name)).map((name) => [name, fields.get(name)]));
    for (const name of ["temperature", "guidance", "top_p"]) {
      if (made[name]) made[name] = Number(made[name]);
    }
    try {
      if (fields.has("image")) {
        const picture = await fromFile(fromText(fields.get("image")), () => this.model);
        await this.show(picture, "From a link", { image: fields.get("image"), ...made }, at);
      } else if (seed !== null && at !== null) {
        const { model } = this;
        this.clear({ seed, ...made });
        const { signal } = this.abort;
        const picture = await drawn(model, { seed, ...made }, signal, (sentence) => this.say(sentence));
        await this.show(picture, titleOf({ seed, ...made }), { seed, ...made }, at);
      } else {
        await this.drawNew(seed === null ? { ...this.anything(), ...made } : { seed, ...made });
      }
    } catch (error) {
      if (error.name !== "AbortError") this.complain(explain(error));
    }
  }

  /** The view is in front again. */
  again() {
    this.ask();
  }

  /** Look at an image that was drawn elsewhere on the page, by the request of a link. */
  async take(picture, { view, fields: { seed, temperature, label, guidance, top_p: topP } }) {
    this.page.show("inside");
    const source = view === "draw"
      ? { seed, temperature, ...given({ label, guidance, top_p: topP }) }
      : { image: await toText(await toPng(picture)), ...(label ? { label } : {}) };
    await this.show(picture, titleOf({ seed, label }), source);
  }

  /** Look at a person's picture. */
  async bring(file) {
    this.page.show("inside");
    this.brought = file;
    try {
      const picture = await fromFile(file, () => this.model);
      const image = await toText(await toPng(picture));
      if (this.brought !== file) return; // another was meanwhile
      if (picture.shape === this.model) await this.show(picture, "Your picture", { image });
      else await this.bring(file); // for another model, chosen meanwhile
    } catch (error) {
      if (this.brought === file) this.complain(explain(error));
    }
  }

  /** Look at a finished picture: at a pixel of it, or at its greatest surprise. */
  async show(picture, title, source, at = null) {
    this.clear(source);
    this.title = title;
    this.player.load({ ...picture, known: null });
    const first = at ?? Math.floor(this.player.total / 2);
    this.goTo(first);
    this.keepLink();
    await this.measure();
    if (at !== null || !this.bits || this.at !== first) return;
    this.goTo(surprises(this.bits, 1)[0]);
    this.keepLink();
  }

  /** Give what makes a new picture: one of some class, where the model is better guided to one. */
  anything() {
    const { classes, guidance, top_p: topP } = this.model;
    const seed = randomSeed();
    if (!guides(this.model)) return { seed };
    const label = classes[Math.floor(Math.random() * classes.length)];
    return { seed, label, guidance, top_p: topP };
  }

  /** Draw a new one here, slowly, with what is expected shown on the way. */
  async drawNew(source) {
    this.clear(source);
    this.title = "Being drawn";
    this.drawing = true;
    this.keepLink();
    this.setSpeed();
    if (calm.matches) this.player.rate = Infinity;
    const { abort } = this;
    try {
      await follow(
        () => post("v1/samples", { model: this.model.id, ...source, stream: true }, abort.signal),
        (event) => {
          this.player.hear(event);
          if (this.chosenPlace !== null) this.player.stop();
        },
        (sentence) => !abort.signal.aborted && this.say(sentence),
        abort.signal,
      );
      if (abort.signal.aborted) return;
      this.report.clear();
      this.title = titleOf(source);
      this.drawing = false;
      await this.measure();
      await this.player.rested();
      if (abort.signal.aborted || !this.bits || this.chosenPlace !== null) return;
      this.goTo(surprises(this.bits, 1)[0]); // behind the last pixel nothing can be asked
      this.keepLink();
    } catch (error) {
      if (abort.signal.aborted) return;
      this.complain(explain(error));
      byId("inside-caption").textContent = this.title = "Not drawn to its end";
    } finally {
      if (this.abort === abort) this.drawing = false;
    }
  }

  replay() {
    if (!this.player.available) return;
    this.chosenPlace = null;
    this.setSpeed();
    this.player.seek(0);
    this.player.play();
  }

  setSpeed() {
    this.player.rate = Number(byId("inside-speed").value);
  }

  /** Stand at a pixel, as far as it is drawn. */
  goTo(p) {
    this.player.stop();
    this.chosenPlace = Math.min(Math.max(0, p), this.player.total - 1);
    this.player.seek(this.chosenPlace);
  }

  /** Go to the costliest pixel, then to the next after it, and around. */
  nextSurprise() {
    if (!this.bits) return;
    const places = surprises(this.bits, SURPRISES);
    const rank = (places.indexOf(this.at) + 1) % places.length;
    this.goTo(places[rank]);
    this.keepLink();
    this.say(`Surprise ${rank + 1} of ${places.length}.`);
  }

  /** The pixel that is looked at: the one to come, or the last. */
  get at() {
    return Math.min(this.player.position, this.player.total - 1);
  }

  get linkFields() {
    const at = this.chosenPlace === null ? {} : { at: this.at };
    return { model: this.model.id, ...this.source, ...at };
  }

  keepLink() {
    this.page.link("inside", this.linkFields);
  }

  /** Have the picture measured, and show what each pixel cost. */
  async measure() {
    const { signal } = this.abort;
    try {
      const png = await toPng(this.player.picture);
      const [measured] = await score(this.model, png, this.source.label, signal, (sentence) => this.say(sentence));
      if (signal.aborted) return;
      this.report.clear();
      this.bits = measured.pixel_bits;
      byId("inside-surprise").disabled = false;
      byId("heat-max").textContent = mostBits(this.bits);
      const plain = 8 * this.player.picture.values.length;
      this.title += `: ${measured.bits_per_dim.toFixed(3)} bits/dim, ${whole.format(measured.bits)} bits `
        + `instead of ${whole.format(plain)}`;
      this.moved(this.player.position);
    } catch (error) {
      if (!signal.aborted) this.complain(explain(error));
    }
  }

  /** The picture stands at another pixel. */
  moved(position) {
    const { at, player, model: { width } } = this;
    const still = !player.moving && !this.drawing;
    this.whatIf.stand(player.picture, at, this.source.label);
    const place = `row ${Math.floor(at / width) + 1}, column ${(at % width) + 1}`;
    setRange(this.form.elements.position, at, place);
    byId("inside-caption").textContent = this.title;
    byId("inside-play").textContent = player.moving ? "Pause" : "Replay";
    this.expectation.verdictLine.ariaLive = still ? "polite" : "off";
    for (const plate of this.plates) plate.mark(at);
    this.plates[0].sign.hidden = !still; // the pixel being drawn shows itself
    if (this.bits) paintHeat(byId("inside-heat"), this.bits, position, !still && position < player.total);
    this.ask();
  }

  ask() {
    if (this.view.hidden) return;
    const { player, at } = this;
    this.expectation.ask(player.picture, at, player.available, this.source.label);
  }

  answered() {
    if (this.passing) this.report.retract(); // it answers again
    const { at, expected } = this.expectation.answer;
    this.whatIf.offer(at, expected);
  }

  say(sentence) {
    this.report.tell(sentence);
  }

  /** Say what went wrong; `passing` if no longer than until a pixel is explained again. */
  complain(sentence, passing = false) {
    this.passing = passing;
    this.report.complain(sentence);
    this.report.reveal();
  }
}

const titleOf = ({ seed, label }) => `Seed ${seed}${label ? `, drawn as ${label}` : ""}`;
