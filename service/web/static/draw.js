/** The view "Draw": new images, of a class or of anything. */

import { IGNORED_FIELDS, comparisonAxes, comparisonRows } from "./compare.js";
import {
  keepsPictures, onDiceClick, parseSeed, randomSeed, readNumber, resolveClass, usesGuidance,
} from "./fields.js";
import { ImageGrid } from "./image-grid.js";
import { SAMPLING, SamplingControls, samplingFields, samplingOf } from "./sampling-controls.js";
import { SettingsPanel } from "./settings-panel.js";

const MAX_COLUMNS = 8; // of a comparison
const MAX_COUNT = 64;
const REDRAW_MS = 200; // after a change, so that a press of "Draw" just after it draws once
const AXIS_NAMES = {
  temperature: "temperature", guidance: "guidance", top_p: "top-p", label: "class", model: "model",
};

/** Link fields that change the form. A link without any of them leaves the form as it is. */
const FORM_FIELDS = ["seed", "label", "by", ...SAMPLING];

/** Form to choose a class and sampling parameters, and the grid of drawn images. */
export class DrawView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.form = document.getElementById("draw-form");
    this.grid = new ImageGrid(document.getElementById("draw"), page);
    this.sampling = new SamplingControls(document.getElementById("draw-sampling"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.draw({ scroll: true });
    });
    this.settings = new SettingsPanel(document.getElementById("draw-settings"),
      document.getElementById("draw-options"));
    this.form.addEventListener("change", ({ target }) => this.onChange(target));
    onDiceClick(this.form, () => this.draw({ scroll: true }));
    if (page.watched) {
      const redraw = () => this.draw({ seed: this.seed });
      import("./follow.js").then(
        ({ FollowTraining }) => new FollowTraining(this.form.elements.follow, page, redraw),
        () => {}, // the choice stays hidden
      );
    }
  }

  /** Apply a changed control at once: draw again from the same seed, unless it keeps the pictures. */
  onChange(control) {
    const { name, value } = control;
    if (name === "pace") this.grid.setPace(Number(value));
    if (keepsPictures(control)) return;
    clearTimeout(this.timer);
    if (name === "label") this.sampling.enableGuidance(Boolean(this.label));
    if (name === "by") this.limitCount();
    const seed = this.form.elements.seed.value ? null : this.seed;
    const scroll = name === "label" || name === "by";
    this.timer = setTimeout(() => this.draw({ seed, scroll, push: true }), REDRAW_MS);
  }

  /** Limit "How many" to the columns of a comparison, and restore it afterwards. */
  limitCount() {
    const { n, by } = this.form.elements;
    const comparing = Boolean(by.value);
    document.getElementById("draw-n-label").textContent = comparing ? "How many per row" : "How many";
    n.max = Math.min(comparing ? MAX_COLUMNS : MAX_COUNT, this.page.maxImages);
    if (comparing) {
      this.countBefore ??= n.value; // `draw` reduces the value to the new maximum
    } else if (this.countBefore) {
      n.value = this.countBefore;
      this.countBefore = null;
    }
  }

  /** Switch to a model and its classes. */
  setModel(model) {
    this.model = model;
    clearTimeout(this.timer);
    this.seed = null; // of the images that the form drew last
    this.grid.clear();
    this.sampling.setModel(model);
    const fieldset = document.getElementById("draw-classes");
    fieldset.querySelectorAll("label").forEach((label) => label.remove());
    fieldset.hidden = model.classes.length === 0;
    // With guidance, "anything" means a random class, because guidance needs a label.
    const guided = usesGuidance(model);
    const names = guided ? ["random", ...model.classes, ""] : ["", ...model.classes];
    for (const name of names) {
      this.addClass(name, { random: "anything", "": guided ? "no class" : "anything" }[name] ?? name);
    }
    document.getElementById("draw-class-hint").hidden = !guided;
    if (guided) {
      this.classInput("random").parentElement.title = "The seed of each image chooses its class";
      this.classInput("").parentElement.title =
        "The model is not given a class, and its images are less clear";
    }
    this.classInput(names[0]).checked = true;
    this.sampling.enableGuidance(Boolean(names[0]));
    const axes = comparisonAxes(model, this.page.models);
    this.form.elements.by.replaceChildren(new Option("nothing", ""),
      ...axes.map((axis) => new Option(`by ${AXIS_NAMES[axis]}`, axis)));
    this.limitCount();
  }

  /** Add a class to the choices. */
  addClass(name, title) {
    const [label, input, text] = ["label", "input", "span"].map((tag) => document.createElement(tag));
    Object.assign(input, { type: "radio", name: "label", value: name });
    text.textContent = title;
    label.append(input, text);
    document.getElementById("draw-classes").append(label);
  }

  /** Return the radio button of a class. */
  classInput(name) {
    return [...this.form.querySelectorAll('[name="label"]')].find(({ value }) => value === name);
  }

  /** The selected class. */
  get label() {
    return this.form.querySelector('[name="label"]:checked')?.value ?? "";
  }

  /**
   * Draw the images of a link; fields that it does not name have the model's defaults. A link to a
   * single image, such as a kept one, leaves the form as it is.
   */
  open(fields) {
    const seed = parseSeed(fields);
    const { n, by } = this.form.elements;
    // The link of a comparison that ignores the class names none.
    const ignoresClass = IGNORED_FIELDS[fields.get("by")] && usesGuidance(this.model);
    const wanted = fields.get("label") ?? (ignoresClass ? "random" : "");
    const label = resolveClass(this.model, wanted, { random: true });
    if (!this.classInput(label)) this.addClass(label, "any class");
    const input = this.classInput(label);
    if (seed !== null && fields.get("n") === "1" && !fields.has("by")) {
      const image = { n: 1, ...samplingFields(this.model, samplingOf(this.model, fields), label) };
      return this.draw({ seed, image });
    }
    if (FORM_FIELDS.some((name) => fields.has(name))) {
      input.checked = true;
      input.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
      this.sampling.enableGuidance(Boolean(this.label));
      this.sampling.setFromLink(fields);
      by.value = "";
      if (comparisonAxes(this.model, this.page.models).includes(fields.get("by"))) {
        by.value = fields.get("by");
      }
      this.countBefore = null;
      this.limitCount();
    }
    if (fields.has("n")) n.value = fields.get("n");
    const automatic = [...fields.keys()].every((name) => name === "model");
    return this.draw({ seed, automatic });
  }

  showError(text) {
    this.grid.status.showError(text);
  }

  /**
   * Draw the images that the form describes.
   *
   * @param {object} options
   * @param {number | null} options.seed instead of the form's
   * @param {boolean} options.scroll scroll to the images
   * @param {boolean} options.push let Back return to the drawing before
   * @param {object | null} options.image request fields of a single image, instead of the form's
   * @param {boolean} options.automatic the visitor did not ask for these images
   */
  draw({ seed = null, scroll = false, push = scroll, image = null, automatic = false } = {}) {
    const { model, page } = this;
    clearTimeout(this.timer);
    if (scroll) this.settings.closeSheet();
    const { n, seed: seedField, pace, by } = this.form.elements;
    const axis = image ? "" : by.value;
    if (!image) n.value = readNumber(n, 12);
    const fields = {
      model: model.id,
      n: Number(n.value),
      seed: seed ?? readNumber(seedField, randomSeed()),
      ...(image ?? this.sampling.fields(this.label)),
    };
    if (!image) this.seed = fields.seed;
    if (seedField.value && seed === null) seedField.value = fields.seed;
    const ignored = IGNORED_FIELDS[axis];
    const hint = document.getElementById("draw-by-hint");
    hint.hidden = !ignored;
    hint.textContent = ignored?.hint ?? "";
    const linkFields = axis ? { ...fields, by: axis } : fields;
    for (const name of ignored?.fields ?? []) delete linkFields[name];
    page.setLink("draw", linkFields, { push });
    const requests = comparisonRows(axis, fields, model, page.models).map((row) => ({
      ...row,
      link: { view: "draw", fields: row.fields },
    }));
    return this.grid.run({
      requests, scroll, automatic, secondsPerImage: Number(pace.value),
      link: { view: "draw", fields: linkFields },
    });
  }
}
