/** The view "Complete": erase a part of a picture and let the model fill it in. */

import { describeError } from "./api.js";
import { decodeFile } from "./decode.js";
import { EditorTools } from "./editor-tools.js";
import { Editor } from "./editor.js";
import { ExampleStrip, exampleRows } from "./examples.js";
import { keepsPictures, onDiceClick, parseSeed, randomSeed, readNumber, resolveClass } from "./fields.js";
import { connectFileButton } from "./file-drop.js";
import { ImageGrid } from "./image-grid.js";
import { LookAhead, lookaheadRows } from "./lookahead.js";
import { PaperOffer, backgroundColour, lightness } from "./paper.js";
import { blankPicture, fromBase64Url, pixelCount, toBase64Url, toPng } from "./pixels.js";
import { SamplingControls } from "./sampling-controls.js";
import { SketchStore } from "./sketch.js";

const REDRAW_MS = 200; // after a change, so that a press of "Complete" just after it completes once
const DRAW_HINT = "Draw the upper part, above the dots. Then press Complete.";
const byId = (id) => document.getElementById(id);

/** Picture editor with examples, and the grid of completions. */
export class CompleteView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.form = byId("complete-form");
    this.grid = new ImageGrid(byId("complete"), page);
    this.editor = new Editor(byId("editor"), byId("editor-position"), () => this.onEdit());
    this.tools = new EditorTools(this.form, this.editor);
    this.examples = new ExampleStrip(byId("editor-status"), (picture) => this.openExample(picture));
    this.sketches = new SketchStore(this.editor);
    const { n } = this.form.elements;
    n.max = Math.min(n.max, page.maxImages);
    this.paperOffer = new PaperOffer(byId("light-paper"), (paper) => {
      this.editor.invertPaper(paper);
      byId("editor").focus();
    });
    this.sampling = new SamplingControls(byId("complete-sampling"), () => this.onSettingsChange());
    this.lookahead = new LookAhead(byId("lookahead"), () =>
      this.complete({ scroll: true, axis: "particles" }));
    this.form.addEventListener("change", ({ target }) => {
      this.onSettingsChange();
      this.onChange(target);
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.complete({ scroll: true });
    });
    onDiceClick(this.form, () => this.complete({ scroll: true }));
    const onClick = (id, act) => byId(id).addEventListener("click", act);
    onClick("blank", () => this.startBlank());
    onClick("undo", () => this.editor.undo());
    onClick("invert", () => {
      this.paperOffer.hide();
      this.editor.invert();
    });
    connectFileButton(byId("upload"), byId("file"), (file) => this.openFile(file));
  }

  /** Switch to a model: its size, classes and examples. */
  setModel(model) {
    this.model = model;
    this.grid.clear();
    const { rows, label, colour } = this.form.elements;
    rows.max = model.height - 1;
    const names = ["", ...model.classes];
    label.replaceChildren(...names.map((name) => new Option(name || "not specified", name)));
    label.closest(".field").hidden = model.classes.length === 0;
    this.sampling.setModel(model);
    this.onSettingsChange();
    colour.hidden = model.channels === 1;
    this.paperOffer.hide();
    this.examples.setModel(model);
    this.sketches.enabled = false;
    this.editor.load({ ...blankPicture(model), known: new Uint8Array(pixelCount(model)) });
    this.completedAny = false;
    clearTimeout(this.timer);
    this.seed = null;
    this.setStatus("");
  }

  /** Complete the picture of a link; without one, the first example. */
  async open(fields) {
    const examples = this.examples.load();
    if (fields.has("image")) {
      const { n, label } = this.form.elements;
      if (fields.has("n")) n.value = fields.get("n");
      this.load(await decodeFile(fromBase64Url(fields.get("image")), () => this.model));
      const seed = parseSeed(fields);
      const wanted = resolveClass(this.model, fields.get("label") ?? "", { random: true });
      if (![...label.options].some(({ value }) => value === wanted)) label.add(new Option("any class", wanted));
      label.value = wanted;
      this.sampling.setFromLink(fields);
      this.onSettingsChange();
      this.lookahead.setFromLink(fields.get("particles"));
      await this.complete({ seed, axis: fields.get("by") });
    } else if (fields.has("own")) {
      await this.startBlank();
    } else if (!this.restoreSketch()) {
      const { model } = this;
      const [first] = await examples;
      // The visitor may have loaded or completed another picture meanwhile.
      const untouched = !this.completedAny && !this.editor.picture.known.includes(1);
      if (first && model === this.model && untouched) {
        await this.openExample(first, { automatic: true });
      }
    }
  }

  /** Keep the top of an example, which fits several pictures, and complete it at once. */
  openExample(picture, options) {
    return this.completeTop(picture, exampleRows(this.model), options);
  }

  /** Keep the first rows of a picture, and complete it at once. */
  completeTop(picture, rows, { automatic = false } = {}) {
    this.load({ ...picture, known: null });
    this.editor.keepRows(rows, true);
    return this.complete({ scroll: !automatic, automatic });
  }

  /** Open an image that another view has drawn. */
  openImage(picture) {
    this.page.show("complete");
    this.examples.load();
    this.completeTop(picture, Math.round(this.model.height / 2));
  }

  /** Open an image file in the editor, cropped and resized to the model's size. */
  async openFile(file) {
    this.page.show("complete");
    this.examples.load();
    this.latestFile = file;
    try {
      const picture = await decodeFile(file, () => this.model);
      if (this.latestFile !== file) return; // another file was opened meanwhile
      this.start(picture);
      const { width, height, channels } = this.model;
      const whole = !picture.known.includes(0);
      if (whole) this.editor.keepRows(Math.round(height / 2), true);
      this.setStatus(`This is your picture as the model sees it: its middle, ${width} × ${height}`
        + `${channels === 1 ? ", grey" : ""}${whole ? ", the lower half erased" : ""}. `
        + "Erase or restore any part, then press Complete.");
      const { picture: edited } = this.editor;
      const examples = await this.examples.load();
      if (this.editor.picture === edited) this.paperOffer.update(picture, examples);
    } catch (error) {
      if (this.latestFile !== file) return;
      this.setStatus("");
      this.showError(describeError(error));
    }
  }

  /** Show a status or instruction above the editor. */
  setStatus(text) {
    byId("editor-status").textContent = text;
  }

  /** Show an error, and scroll to it. */
  showError(text) {
    this.grid.status.showError(text);
    this.grid.status.scrollIntoView();
  }

  load(picture) {
    this.paperOffer.hide();
    this.setStatus("");
    this.editor.load(picture);
  }

  /** Load a picture without completing it, and remove the completions of the last one. */
  start(picture) {
    this.grid.clear();
    clearTimeout(this.timer);
    this.seed = null; // nothing is completed that a setting could change
    this.page.setLink("complete", { model: this.model.id }, { push: true });
    this.sketches.enabled = true;
    this.load(picture);
  }

  /** Start with an empty picture: black, or in the examples' background colour once it is known. */
  async startBlank() {
    this.examples.load();
    this.start(blankPicture(this.model));
    this.setStatus(DRAW_HINT);
    byId("editor").focus();
    const { editor, editor: { picture, undoStack: { length } } } = this;
    editor.blank = true;
    editor.update(); // without the tool "Restore"
    this.tools.selectPen(this.model.width);
    const background = backgroundColour(await this.examples.load());
    // Do not replace what the visitor has drawn or loaded meanwhile.
    const touched = editor.picture !== picture || editor.lowestRow !== null
      || editor.undoStack.length !== length || picture.known.includes(0);
    if (touched || !lightness(background)) return;
    editor.fill(background);
    this.tools.selectContrastColour();
  }

  /** Update the controls that depend on the picture. */
  onEdit() {
    const { known, shape } = this.editor.picture;
    if (shape.channels === 1) this.tools.selectContrastColour(); // the colour field is hidden
    const rows = Math.floor((known.includes(0) ? known.indexOf(0) : known.length) / shape.width);
    this.tools.showRows(rows);
    this.tools.showRestore(!this.editor.blank);
    byId("order-note").hidden = !this.editor.knownAfterGap;
    this.lookahead.setEnabled(this.editor.knownAfterGap);
    this.sketches.save(this.model); // for a reload, until a link has the picture
  }

  /** Restore the drawing that was in the editor before a reload; return false if there is none. */
  restoreSketch() {
    const sketch = this.sketches.load(this.model);
    if (!sketch) return false;
    this.start(sketch.picture);
    Object.assign(this.editor, sketch.state);
    this.editor.update();
    if (this.editor.blank) this.tools.selectPen(this.model.width);
    const { blank, lowestRow } = this.editor;
    this.setStatus(blank && lowestRow === null ? DRAW_HINT
      : "This is the picture that you had not completed yet.");
    return true;
  }

  /** Update the controls that depend on the class and guidance. */
  onSettingsChange() {
    const { label } = this.form.elements;
    this.sampling.enableGuidance(Boolean(label.value));
    const { guidance = 1 } = this.sampling.fields(label.value);
    this.lookahead.setLimit(this.model.slots / (guidance === 1 ? 1 : 2)); // guidance takes two slots
  }

  /** Apply a changed control at once: complete again from the same seed, unless it keeps the pictures. */
  onChange(control) {
    if (control.name === "pace") this.grid.setPace(Number(control.value));
    if (keepsPictures(control) || this.seed === null) return;
    clearTimeout(this.timer);
    const seed = this.form.elements.seed.value ? null : this.seed;
    this.timer = setTimeout(() => this.complete({ seed, push: true }), REDRAW_MS);
  }

  /** Return true if something is left to draw; below a sketch, mark everything as unknown. */
  prepareGap() {
    const { editor } = this;
    const below = editor.lowestRow !== null && editor.lowestRow + 1 < this.model.height;
    if (!editor.picture.known.includes(0) && below) {
      // The rounded end of the last stroke is unknown too, or the model would see the stroke end.
      editor.keepRows(Math.max(1, editor.lowestRow + 1 - editor.strokeEnd));
    }
    return editor.picture.known.includes(0);
  }

  /**
   * Complete the picture; its unknown pixels are sent as transparent.
   *
   * @param {object} options
   * @param {number | null} options.seed of a link, instead of the form's
   * @param {boolean} options.scroll scroll to the completions
   * @param {boolean} options.push let Back return to the completions before
   * @param {string | null} options.axis "particles" to draw with and without looking ahead
   * @param {boolean} options.automatic the visitor did not ask for these completions
   */
  async complete({ seed = null, scroll = false, push = scroll, axis = null, automatic = false } = {}) {
    clearTimeout(this.timer);
    if (!this.prepareGap()) {
      this.setStatus(this.editor.blank && this.editor.lowestRow === null ? "Draw something first."
        : "Nothing is erased yet. Erase a part of the picture, or keep fewer rows.");
      byId("editor-status").scrollIntoView({ block: "nearest" });
      return;
    }
    this.completedAny = true;
    this.sketches.forget();
    this.setStatus("");
    const { model, editor: { picture } } = this;
    const { n, seed: seedField, label, pace } = this.form.elements;
    const input = { ...picture, values: picture.values.slice(), known: picture.known.slice() };
    const png = await toPng(input, (p) => input.known[p]);
    const fields = {
      model: model.id,
      n: readNumber(n, 8),
      seed: seed ?? readNumber(seedField, randomSeed()),
      ...this.sampling.fields(label.value),
      ...this.lookahead.fields,
    };
    n.value = fields.n;
    this.seed = fields.seed;
    if (seedField.value && seed === null) seedField.value = fields.seed;
    const image = await toBase64Url(png);
    if (model !== this.model) return; // another model was selected meanwhile
    const createLink = (linkFields) => ({ view: "complete", fields: { ...linkFields, image } });
    const requests = lookaheadRows(axis, fields).map((row) => ({
      ...row,
      model,
      image: png,
      link: createLink(row.fields),
    }));
    const companion = byId("editor").closest(".panel"); // above the completions on a phone
    const link = createLink({ ...fields, ...(requests.length > 1 ? { by: axis } : {}) });
    this.page.setLink("complete", link.fields, { push });
    await this.grid.run({
      requests, secondsPerImage: Number(pace.value), input, scroll, link, companion, automatic,
    });
  }
}
