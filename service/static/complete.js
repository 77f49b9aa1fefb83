/** The view "Complete": a picture with a hole, and many ways to fill it. */

import { explain, postPicture } from "./api.js";
import { chooseFile } from "./arrivals.js";
import { Easel } from "./easel.js";
import { drawExamples, lightness, paperOf, places, thumbnail } from "./examples.js";
import { classOf, listenToDice, noClass, noSeed, randomSeed, readNumber, seedOf } from "./fields.js";
import { area, blank, fromFile, fromText, toPng, toText } from "./pixels.js";
import { LookAhead, rowsOf } from "./lookahead.js";
import { Shaping } from "./shaping.js";
import { Sheet } from "./sheet.js";
import { Tools } from "./tools.js";

const DARK = 48; // lightness of paper, 0 … 255: less is dark,
const LIGHTER = 128; // and so much more is light
const COMING = "The model is drawing examples …";
const byId = (id) => document.getElementById(id);

/** Choose a picture, erase a part, complete it. */
export class CompleteView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.form = byId("complete-form");
    this.sheet = new Sheet(byId("complete"), page.viewer);
    this.easel = new Easel(byId("easel"), byId("easel-place"), () => this.edited());
    this.tools = new Tools(this.form, this.easel);
    this.shaping = new Shaping(byId("complete-shaping"), () => this.settled());
    this.ahead = new LookAhead(byId("ahead"), () => this.complete({ reveal: true, by: "particles" }));
    this.form.addEventListener("change", () => this.settled());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.complete({ reveal: true });
    });
    listenToDice(this.form, () => this.complete({ reveal: true }));
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("blank", () => this.startBlank());
    on("undo", () => this.easel.undo());
    on("invert", () => this.invert());
    on("paper-lift", () => {
      byId("paper-offer").hidden = true;
      this.easel.lift(this.paper);
      byId("easel").focus();
    });
    on("more-examples", () => {
      this.askExamples();
      byId("upload").focus();
    });
    chooseFile(byId("upload"), byId("file"), (file) => this.bring(file));
  }

  /** Take a model: its size, its classes, and examples it draws itself. */
  use(model) {
    this.model = model;
    this.sheet.clear();
    const { rows, label, colour } = this.form.elements;
    rows.max = model.height - 1;
    const names = ["", ...model.classes];
    label.replaceChildren(...names.map((name) => new Option(name || "anything", name)));
    label.closest(".field").hidden = model.classes.length === 0;
    this.shaping.use(model);
    this.settled();
    colour.hidden = model.channels === 1;
    byId("paper-offer").hidden = true;
    byId("examples").replaceChildren();
    this.easel.load({ ...blank(model), known: new Uint8Array(area(model)) });
    this.examples = null;
    this.asked = false; // for anything to be completed
    this.tell("");
  }

  /** Show a link's picture, or an example that is half erased. */
  async open(fields) {
    const examples = this.examples ?? this.askExamples();
    if (fields.has("image")) {
      const { n, label } = this.form.elements;
      if (fields.has("n")) n.value = fields.get("n");
      const wanted = classOf(this.model, fields.get("label") ?? "");
      const there = [...label.options].some(({ value }) => value === wanted);
      const any = !there && wanted === "random" && this.model.classes.length > 0;
      if (any) label.add(new Option("any class", wanted));
      label.value = there || any ? wanted : "";
      this.shaping.take(fields);
      this.settled();
      try {
        this.easel.load(await fromFile(fromText(fields.get("image")), () => this.model));
        this.ahead.take(fields.get("particles"));
      } catch (error) {
        this.sheet.report.complain(`The link's picture is damaged. ${explain(error)}`);
        return;
      }
      if (label.value !== wanted) {
        this.sheet.report.complain(noClass(wanted));
        return;
      }
      const seed = seedOf(fields);
      if (fields.has("seed") && seed === null) {
        this.sheet.report.complain(noSeed(fields.get("seed")));
        return;
      }
      await this.complete({ seed, by: fields.get("by") });
    } else {
      const { model } = this;
      const [first] = await examples;
      // A person may have been faster, and put something else there, or had nothing completed.
      const untouched = !this.asked && !this.easel.picture.known.includes(1);
      if (first && model === this.model && untouched) {
        await this.pick(first, false);
      }
    }
  }

  /** Show the examples once they are drawn, or a button to try again. */
  async askExamples() {
    const { model } = this;
    const coming = () => byId("easel-said").textContent.startsWith(COMING); // nothing else was told
    const say = (sentence) => model === this.model && coming() && this.tell(`${COMING} ${sentence}`);
    this.examples = drawExamples(model, say).catch((error) => {
      if (model === this.model) this.tell(`No examples came. ${explain(error)}`);
      return [];
    });
    byId("more-examples").hidden = true;
    byId("examples").replaceChildren(...places());
    this.tell(COMING);
    const pictures = await this.examples;
    if (model !== this.model) return pictures;
    if (coming()) this.tell("");
    byId("more-examples").hidden = pictures.length > 0;
    byId("examples").replaceChildren(...pictures.map((picture, k) =>
      thumbnail(picture, k + 1, () => this.pick(picture))));
    return pictures;
  }

  /** Erase the lower half of a picture, and complete it at once. */
  pick(picture, reveal = true) {
    this.load({ ...picture, known: null });
    this.easel.keepRows(Math.round(this.model.height / 2), true);
    return this.complete({ reveal });
  }

  /** Take an image that was drawn here. */
  take(picture) {
    this.page.show("complete");
    this.askOnce();
    this.pick(picture);
  }

  /** Put a person's picture on the easel, as much of it as the model can see. */
  async bring(file) {
    this.page.show("complete");
    this.askOnce();
    this.brought = file;
    try {
      const picture = await fromFile(file, () => this.model);
      if (this.brought !== file) return; // another was meanwhile
      this.begin(picture);
      const { width, height, channels } = this.model;
      const whole = !picture.known.includes(0);
      if (whole) this.easel.keepRows(Math.round(height / 2), true);
      this.tell(`Your picture is on the easel, as the model sees it: its middle, ${width} × ${height}`
        + `${channels === 1 ? ", grey" : ""}${whole ? ", the lower half erased" : ""}. `
        + "Erase or restore what you like, then complete it.");
      const { picture: mine } = this.easel;
      const drawnOn = paperOf(await this.examples);
      if (this.easel.picture !== mine) return; // another lies there by now
      this.paper = paperOf([picture]);
      byId("paper-offer").hidden = lightness(drawnOn) >= DARK
        || lightness(this.paper) - lightness(drawnOn) < LIGHTER;
    } catch (error) {
      if (this.brought !== file) return;
      this.tell("");
      this.complain(explain(error));
    }
  }

  /** Say what can be done now, right above the easel. */
  tell(sentence) {
    byId("easel-said").textContent = sentence;
  }

  /** Say what went wrong, in sight. */
  complain(sentence) {
    this.sheet.report.complain(sentence);
    this.sheet.report.reveal();
  }

  askOnce() {
    if (this.examples === null) this.askExamples();
  }

  load(picture) {
    byId("paper-offer").hidden = true;
    this.tell("");
    this.blank = false; // a sheet to draw on
    this.easel.load(picture);
  }

  /** Put something on the easel that is not completed yet: what was is another picture's. */
  begin(picture) {
    this.sheet.clear();
    this.page.link("complete", { model: this.model.id });
    this.load(picture);
  }

  /** Begin with a black sheet, or one of the model's own paper as soon as that is known. */
  async startBlank() {
    this.askOnce();
    this.spread([0, 0, 0]);
    this.tell("Draw the upper part, then let it be completed.");
    byId("easel").focus();
    const { easel, easel: { picture, past: { length } } } = this;
    const paper = paperOf(await this.examples);
    // Not over what was drawn or put there meanwhile.
    const touched = easel.picture !== picture || easel.lowest !== null
      || easel.past.length !== length || picture.known.includes(0);
    if (touched || !lightness(paper)) return;
    easel.undo(); // takes back both sheets at once
    this.spread(paper);
    this.tell("Draw the upper part, then let it be completed.");
  }

  /** Put a sheet of this paper on the easel, and a pen that can be seen on it at hand. */
  spread(paper) {
    this.begin(blank(this.model, paper));
    this.blank = true;
    this.easel.paper = paper;
    this.tools.draw(this.model.width);
  }

  invert() {
    byId("paper-offer").hidden = true;
    this.easel.invert();
  }

  /** The easel changed: say how much is known, and the truth about the order. */
  edited() {
    const { known, shape } = this.easel.picture;
    if (shape.channels === 1) this.tools.takePen(); // nobody else can
    const rows = Math.floor((known.includes(0) ? known.indexOf(0) : known.length) / shape.width);
    this.tools.showRows(rows);
    byId("order-note").hidden = !this.easel.scattered;
    this.ahead.offer(this.easel.scattered);
  }

  /** What is drawn with changed: whether there is guidance, and how many tries there are slots for. */
  settled() {
    const { label } = this.form.elements;
    this.shaping.guided(Boolean(label.value));
    const { guidance = 1 } = this.shaping.fields(label.value);
    this.ahead.limit(this.model.slots / (guidance === 1 ? 1 : 2));
  }

  /** Whether something is left to draw; below a sketch, everything is. */
  hasGap() {
    const { easel } = this;
    const below = easel.lowest !== null && easel.lowest + 1 < this.model.height;
    if (!easel.picture.known.includes(0) && below) {
      // Not the tip of the last stroke, or the model is told that it ends there.
      easel.keepRows(Math.max(1, easel.lowest + 1 - easel.tip));
    }
    return easel.picture.known.includes(0);
  }

  /**
   * Send the picture, transparent where it is unknown; with a link's seed if there is one, and both
   * without and with looking ahead where that is to be compared.
   */
  async complete({ seed = null, reveal = false, by = null } = {}) {
    if (!this.hasGap()) {
      this.tell(this.blank && this.easel.lowest === null
        ? "Draw something first." : "Nothing is erased yet. Rub something out, or lower the known rows.");
      byId("easel-said").scrollIntoView({ block: "nearest" });
      return;
    }
    this.asked = true;
    this.tell("");
    const { model, easel: { picture } } = this;
    const { n, seed: typed, label, pace } = this.form.elements;
    const given = { ...picture, values: picture.values.slice(), known: picture.known.slice() };
    const png = await toPng(given, (p) => given.known[p]);
    const fields = {
      model: model.id,
      n: readNumber(n, 8),
      seed: seed ?? readNumber(typed, randomSeed()),
      ...this.shaping.fields(label.value),
      ...this.ahead.fields,
    };
    n.value = fields.n;
    if (typed.value && seed === null) typed.value = fields.seed;
    const linkTo = (asked) => ({ view: "complete", fields: { ...asked, image } });
    const image = await toText(png);
    if (model !== this.model) return; // another was chosen meanwhile
    const parts = rowsOf(by, fields).map((row) => ({
      ...row,
      model,
      link: linkTo(row.fields),
      open: (signal) => postPicture("v1/completions", { ...row.fields, stream: true }, png, signal),
    }));
    const link = linkTo({ ...fields, ...(parts.length > 1 ? { by } : {}) });
    this.page.link("complete", link.fields);
    await this.sheet.run({ parts, pace: Number(pace.value), given, reveal, link });
  }
}
