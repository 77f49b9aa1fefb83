/** The view "Draw": images from nothing, of a class or of anything. */

import { call } from "./api.js";
import { Sheet } from "./sheet.js";

const MAX_RANDOM = 2 ** 32;

/** A seed nobody chose. */
export const randomSeed = () => Math.floor(Math.random() * MAX_RANDOM);

/** Fit a number field's text between its bounds. */
export function readNumber(field, fallback) {
  const value = field.value === "" ? fallback : Math.round(Number(field.value));
  return Math.min(Number(field.max), Math.max(Number(field.min), value));
}

/** Show a range's value beside it. */
export function echo(range, output, text = (value) => Number(value).toFixed(2)) {
  const show = () => { output.textContent = text(range.value); };
  range.addEventListener("input", show);
  show();
  return show;
}

/** Choose a class, or what to draw with, and draw. */
export class DrawView {
  /** @param {{open: (item: object) => void, link: (view: string, fields: object) => void}} page */
  constructor(page) {
    this.page = page;
    this.form = document.getElementById("draw-form");
    this.sheet = new Sheet(document.getElementById("draw"), page.open);
    const { temperature, heat } = this.form.elements;
    this.echo = echo(temperature, heat);
    // A phone shows pictures first; the settings are one tap away.
    if (matchMedia("(max-width: 52rem)").matches) {
      document.getElementById("draw-options").open = false;
    }
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.draw();
    });
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "label") this.draw();
    });
  }

  /** Take a model: its classes become the choices. */
  use(model) {
    this.model = model;
    this.sheet.clear();
    const box = document.getElementById("draw-classes");
    box.querySelectorAll("label").forEach((label) => label.remove());
    box.hidden = model.classes.length === 0;
    for (const name of ["", ...model.classes]) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      const text = document.createElement("span");
      Object.assign(input, { type: "radio", name: "label", value: name, checked: name === "" });
      text.textContent = name || "anything";
      label.append(input, text);
      box.append(label);
    }
  }

  /** Fill the form from a link's fields, and draw them. */
  restore(fields) {
    const { n, seed, temperature } = this.form.elements;
    if (fields.has("n")) n.value = fields.get("n");
    if (fields.has("seed")) seed.value = fields.get("seed");
    if (fields.has("temperature")) temperature.value = fields.get("temperature");
    this.echo();
    const wanted = fields.get("label") ?? "";
    for (const input of this.form.querySelectorAll('[name="label"]')) {
      input.checked = input.value === wanted;
    }
    return this.draw();
  }

  /** Draw what the form says. */
  draw() {
    const { n, seed, temperature, pace } = this.form.elements;
    const label = this.form.querySelector('[name="label"]:checked')?.value ?? "";
    const body = {
      model: this.model.id,
      n: readNumber(n, 12),
      seed: readNumber(seed, randomSeed()),
      temperature: Number(temperature.value),
      stream: true,
    };
    if (label) body.label = label;
    n.value = body.n;
    const { stream, ...shown } = body;
    this.page.link("draw", shown);
    return this.sheet.run({
      model: this.model,
      n: body.n,
      label,
      pace: Number(pace.value),
      open: (signal) => call("v1/samples", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal,
      }),
    });
  }
}
