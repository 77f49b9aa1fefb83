/** The view "Complete": a picture with a hole, and many ways to fill it. */

import { explain, postPicture } from "./api.js";
import { chooseFile } from "./file-drop.js";
import { Editor } from "./editor.js";
import { drawExamples, lightness, paperOf, places, thumbnail } from "./examples.js";
import { classOf, listenToDice, noClass, noSeed, randomSeed, readNumber, seedOf } from "./fields.js";
import { area, blank, fromFile, fromText, toPng, toText } from "./pixels.js";
import { LookAhead, rowsOf } from "./lookahead.js";
import { SamplingControls } from "./sampling-controls.js";
import { ImageGrid } from "./image-grid.js";
import { EditorTools } from "./editor-tools.js";

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
    this.grid = new ImageGrid(byId("complete"), page.viewer);
    this.editor = new Editor(byId("editor"), byId("editor-position"), () => this.edited());
    this.tools = new EditorTools(this.form, this.editor);
    this.shaping = new SamplingControls(byId("complete-sampling"), () => this.settled());
    this.ahead = new LookAhead(byId("lookahead"), () => this.complete({ reveal: true, by: "particles" }));
    this.form.addEventListener("change", () => this.settled());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.complete({ reveal: true });
    });
    listenToDice(this.form, () => this.complete({ reveal: true }));
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("blank", () => this.startBlank());
    on("undo", () => this.editor.undo());
    on("invert", () => this.invert());
    on("light-paper-invert", () => {
      byId("light-paper").hidden = true;
      this.editor.lift(this.paper);
      byId("editor").focus();
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
    this.grid.clear();
    const { rows, label, colour } = this.form.elements;
    rows.max = model.height - 1;
    const names = ["", ...model.classes];
    label.replaceChildren(...names.map((name) => new Option(name || "anything", name)));
    label.closest(".field").hidden = model.classes.length === 0;
    this.shaping.use(model);
    this.settled();
    colour.hidden = model.channels === 1;
    byId("light-paper").hidden = true;
    byId("examples").replaceChildren();
    this.editor.load({ ...blank(model), known: new Uint8Array(area(model)) });
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
        this.editor.load(await fromFile(fromText(fields.get("image")), () => this.model));
        this.ahead.take(fields.get("particles"));
      } catch (error) {
        this.grid.report.complain(`The link's picture is damaged. ${explain(error)}`);
        return;
      }
      if (label.value !== wanted) {
        this.grid.report.complain(noClass(wanted));
        return;
      }
      const seed = seedOf(fields);
      if (fields.has("seed") && seed === null) {
        this.grid.report.complain(noSeed(fields.get("seed")));
        return;
      }
      await this.complete({ seed, by: fields.get("by") });
    } else {
      const { model } = this;
      const [first] = await examples;
      // A person may have been faster, and put something else there, or had nothing completed.
      const untouched = !this.asked && !this.editor.picture.known.includes(1);
      if (first && model === this.model && untouched) {
        await this.pick(first, false);
      }
    }
  }

  /** Show the examples once they are drawn, or a button to try again. */
  async askExamples() {
    const { model } = this;
    const coming = () => byId("editor-status").textContent.startsWith(COMING); // nothing else was told
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
    this.editor.keepRows(Math.round(this.model.height / 2), true);
    return this.complete({ reveal });
  }

  /** Take an image that was drawn here. */
  take(picture) {
    this.page.show("complete");
    this.askOnce();
    this.pick(picture);
  }

  /** Put a person's picture on the editor, as much of it as the model can see. */
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
      if (whole) this.editor.keepRows(Math.round(height / 2), true);
      this.tell(`Your picture is on the editor, as the model sees it: its middle, ${width} × ${height}`
        + `${channels === 1 ? ", grey" : ""}${whole ? ", the lower half erased" : ""}. `
        + "Erase or restore what you like, then complete it.");
      const { picture: mine } = this.editor;
      const drawnOn = paperOf(await this.examples);
      if (this.editor.picture !== mine) return; // another lies there by now
      this.paper = paperOf([picture]);
      byId("light-paper").hidden = lightness(drawnOn) >= DARK
        || lightness(this.paper) - lightness(drawnOn) < LIGHTER;
    } catch (error) {
      if (this.brought !== file) return;
      this.tell("");
      this.complain(explain(error));
    }
  }

  /** Say what can be done now, right above the editor. */
  tell(sentence) {
    byId("editor-status").textContent = sentence;
  }

  /** Say what went wrong, in sight. */
  complain(sentence) {
    this.grid.report.complain(sentence);
    this.grid.report.reveal();
  }

  askOnce() {
    if (this.examples === null) this.askExamples();
  }

  load(picture) {
    byId("light-paper").hidden = true;
    this.tell("");
    this.blank = false; // a sheet to draw on
    this.editor.load(picture);
  }

  /** Put something on the editor that is not completed yet: what was is another picture's. */
  begin(picture) {
    this.grid.clear();
    this.page.link("complete", { model: this.model.id });
    this.load(picture);
  }

  /** Begin with a black sheet, or one of the model's own paper as soon as that is known. */
  async startBlank() {
    this.askOnce();
    this.spread([0, 0, 0]);
    this.tell("Draw the upper part, then let it be completed.");
    byId("editor").focus();
    const { editor, editor: { picture, past: { length } } } = this;
    const paper = paperOf(await this.examples);
    // Not over what was drawn or put there meanwhile.
    const touched = editor.picture !== picture || editor.lowest !== null
      || editor.past.length !== length || picture.known.includes(0);
    if (touched || !lightness(paper)) return;
    editor.undo(); // takes back both sheets at once
    this.spread(paper);
    this.tell("Draw the upper part, then let it be completed.");
  }

  /** Put a sheet of this paper on the editor, and a pen that can be seen on it at hand. */
  spread(paper) {
    this.begin(blank(this.model, paper));
    this.blank = true;
    this.editor.paper = paper;
    this.tools.draw(this.model.width);
  }

  invert() {
    byId("light-paper").hidden = true;
    this.editor.invert();
  }

  /** The editor changed: say how much is known, and the truth about the order. */
  edited() {
    const { known, shape } = this.editor.picture;
    if (shape.channels === 1) this.tools.takePen(); // nobody else can
    const rows = Math.floor((known.includes(0) ? known.indexOf(0) : known.length) / shape.width);
    this.tools.showRows(rows);
    byId("order-note").hidden = !this.editor.scattered;
    this.ahead.offer(this.editor.scattered);
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
    const { editor } = this;
    const below = editor.lowest !== null && editor.lowest + 1 < this.model.height;
    if (!editor.picture.known.includes(0) && below) {
      // Not the tip of the last stroke, or the model is told that it ends there.
      editor.keepRows(Math.max(1, editor.lowest + 1 - editor.tip));
    }
    return editor.picture.known.includes(0);
  }

  /**
   * Send the picture, transparent where it is unknown; with a link's seed if there is one, and both
   * without and with looking ahead where that is to be compared.
   */
  async complete({ seed = null, reveal = false, by = null } = {}) {
    if (!this.hasGap()) {
      this.tell(this.blank && this.editor.lowest === null
        ? "Draw something first." : "Nothing is erased yet. Rub something out, or lower the known rows.");
      byId("editor-status").scrollIntoView({ block: "nearest" });
      return;
    }
    this.asked = true;
    this.tell("");
    const { model, editor: { picture } } = this;
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
    await this.grid.run({ parts, pace: Number(pace.value), given, reveal, link });
  }
}
