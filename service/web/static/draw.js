/** The view "Draw": images from nothing, of a class or of anything. */

import { post } from "./api.js";
import { UNHEEDED, axesOf, rowsOf } from "./compare.js";
import { classOf, guides, listenToDice, noClass, noSeed, randomSeed, readNumber, seedOf } from "./fields.js";
import { SamplingControls } from "./sampling-controls.js";
import { ImageGrid } from "./image-grid.js";

const MOST_COLUMNS = 8; // of a comparison
const AXES = {
  temperature: "temperature", guidance: "guidance", top_p: "top-p", label: "class", model: "model",
};

/** What of a link says how to draw; a link that says none of it leaves that to the form. */
const SAID = ["seed", "label", "by", "temperature", "guidance", "top_p"];

/** Choose a class, or what to draw with, and draw. */
export class DrawView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.form = document.getElementById("draw-form");
    this.grid = new ImageGrid(document.getElementById("draw"), page.viewer);
    this.shaping = new SamplingControls(document.getElementById("draw-sampling"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.draw({ reveal: true });
    });
    this.form.addEventListener("change", ({ target: { name } }) => {
      if (name === "label") this.shaping.guided(Boolean(this.label));
      if (name === "label" || name === "by") this.draw({ reveal: true });
    });
    listenToDice(this.form, () => this.draw({ reveal: true }));
  }

  /** Take a model: its classes become the choices. */
  use(model) {
    this.model = model;
    this.grid.clear();
    this.shaping.use(model);
    const box = document.getElementById("draw-classes");
    box.querySelectorAll("label").forEach((label) => label.remove());
    box.hidden = model.classes.length === 0;
    // Guided, an image of anything is of some class; without a label nothing can be guided.
    const guided = guides(model);
    const names = guided ? ["random", ...model.classes, ""] : ["", ...model.classes];
    for (const name of names) {
      this.offer(name, { random: "anything", "": guided ? "no class" : "anything" }[name] ?? name);
    }
    if (guided) {
      this.chip("random").parentElement.title = "Each image of a class that its seed chooses";
      this.chip("").parentElement.title = "The model is told no class, and is less sure what it draws";
    }
    this.chip(names[0]).checked = true;
    this.shaping.guided(Boolean(names[0]));
    const axes = axesOf(model, this.page.models);
    this.form.elements.by.replaceChildren(new Option("nothing", ""),
      ...axes.map((axis) => new Option(`by ${AXES[axis]}`, axis)));
  }

  /** Add a class to the choices. */
  offer(name, title) {
    const [label, input, text] = ["label", "input", "span"].map((tag) => document.createElement(tag));
    Object.assign(input, { type: "radio", name: "label", value: name });
    text.textContent = title;
    label.append(input, text);
    document.getElementById("draw-classes").append(label);
  }

  /** Give the button of a class. */
  chip(name) {
    return [...this.form.querySelectorAll('[name="label"]')].find(({ value }) => value === name);
  }

  get label() {
    return this.form.querySelector('[name="label"]:checked')?.value ?? "";
  }

  /** Draw what a link says; where it says nothing, what the model draws by itself. */
  open(fields) {
    const seed = seedOf(fields);
    const { n, by } = this.form.elements;
    const label = classOf(this.model, fields.get("label") ?? "");
    if (label === "random" && this.model.classes.length && !this.chip(label)) {
      this.offer(label, "any class");
    }
    const chip = this.chip(label);
    if (fields.has("label") && !chip) {
      this.grid.report.complain(noClass(label));
      return null;
    }
    if (fields.has("seed") && seed === null) {
      this.grid.report.complain(noSeed(fields.get("seed")));
      return null;
    }
    if (fields.has("n")) n.value = fields.get("n");
    if (SAID.some((name) => fields.has(name))) {
      chip.checked = true;
      chip.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
      this.shaping.guided(Boolean(this.label));
      this.shaping.take(fields);
      by.value = "";
      if (axesOf(this.model, this.page.models).includes(fields.get("by"))) by.value = fields.get("by");
    }
    return this.draw({ seed });
  }

  /** Draw what the form says; of a link's seed where there is one. */
  draw({ seed = null, reveal = false } = {}) {
    const { model, page } = this;
    if (reveal) document.getElementById("draw-options").togglePopover(false);
    const { n, seed: typed, pace, by: { value: by } } = this.form.elements;
    const count = readNumber(n, 12);
    const fields = {
      model: model.id,
      n: by ? Math.min(count, MOST_COLUMNS) : count,
      seed: seed ?? readNumber(typed, randomSeed()),
      ...this.shaping.fields(this.label),
    };
    n.value = count;
    if (typed.value && seed === null) typed.value = fields.seed;
    const unheeded = UNHEEDED[by];
    const said = document.getElementById("draw-by-hint");
    said.hidden = !unheeded;
    said.textContent = unheeded?.said ?? "";
    const shown = by ? { ...fields, by } : fields;
    for (const name of unheeded?.fields ?? []) delete shown[name];
    page.link("draw", shown);
    const parts = rowsOf(by, fields, model, page.models).map((row) => ({
      ...row,
      link: { view: "draw", fields: row.fields },
      open: (signal) => post("v1/samples", { ...row.fields, stream: true }, signal),
    }));
    return this.grid.run({
      parts, reveal, pace: Number(pace.value), link: { view: "draw", fields: shown },
    });
  }
}
