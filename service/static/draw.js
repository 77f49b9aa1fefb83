/** The view "Draw": images from nothing, of a class or of anything. */

import { post } from "./api.js";
import { echo, fillForm, listenToDice, randomSeed, readNumber, shapeOf } from "./fields.js";
import { Sheet } from "./sheet.js";

/** Choose a class, or what to draw with, and draw. */
export class DrawView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.form = document.getElementById("draw-form");
    this.sheet = new Sheet(document.getElementById("draw"), page.viewer);
    echo(this.form.elements.temperature);
    // A phone shows pictures first; the settings are one tap away.
    if (matchMedia("(max-width: 52rem)").matches) {
      document.getElementById("draw-options").open = false;
    }
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.draw({ reveal: true });
    });
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "label") this.draw({ reveal: true });
    });
    listenToDice(this.form, () => this.draw({ reveal: true }));
  }

  /** Take a model: its classes become the choices. */
  use(model) {
    this.model = model;
    this.sheet.clear();
    const box = document.getElementById("draw-classes");
    box.querySelectorAll("label").forEach((label) => label.remove());
    box.hidden = model.classes.length === 0;
    // Guided, an image of anything is of some class; without a label nothing can be guided.
    const guided = model.guidance !== 1;
    const names = guided ? ["random", ...model.classes, ""] : ["", ...model.classes];
    for (const name of names) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      const text = document.createElement("span");
      Object.assign(input, { type: "radio", name: "label", value: name, checked: name === names[0] });
      text.textContent = { random: "anything", "": guided ? "no label" : "anything" }[name] ?? name;
      label.append(input, text);
      box.append(label);
    }
  }

  /** Draw what a link says; where it says nothing, what the model draws by itself. */
  open(fields) {
    const seed = fillForm(this.form, fields);
    if (seed !== null || fields.has("label")) {
      const wanted = fields.get("label") ?? "";
      for (const input of this.form.querySelectorAll('[name="label"]')) {
        input.checked = input.value === wanted;
      }
    }
    const shape = Object.fromEntries(["guidance", "top_p"]
      .filter((name) => fields.has(name)).map((name) => [name, Number(fields.get(name))]));
    return this.draw({ seed, shape });
  }

  /** Draw what the form says; of a link's seed, guidance and top_p where there is one. */
  draw({ seed = null, shape = {}, reveal = false } = {}) {
    const { n, seed: typed, temperature, pace } = this.form.elements;
    const label = this.form.querySelector('[name="label"]:checked')?.value ?? "";
    const fields = {
      model: this.model.id,
      n: readNumber(n, 12),
      seed: seed ?? readNumber(typed, randomSeed()),
      temperature: Number(temperature.value),
      ...shapeOf(this.model, label),
      ...shape,
    };
    n.value = fields.n;
    this.page.link("draw", fields);
    return this.sheet.run({
      model: this.model,
      fields,
      pace: Number(pace.value),
      reveal,
      link: { view: "draw", fields },
      open: (signal) => post("v1/samples", { ...fields, stream: true }, signal),
    });
  }
}
