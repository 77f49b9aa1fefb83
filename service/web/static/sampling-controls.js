/** The dials that shape a drawing: temperature, guidance and top-p, each with a few words. */

import { setRange } from "./fields.js";

const DIALS = {
  temperature: {
    name: "Temperature", min: 0, max: 1.5, step: 0.05,
    words: "1 draws as it learned; less is plainer, and much less may leave the sheet empty",
  },
  guidance: {
    name: "Guidance", min: 0, max: 10, step: 0.25,
    words: "pulls towards the class: 1 as it learned, more is plainer and less varied",
  },
  top_p: {
    name: "Top-p", min: 0.5, max: 1, step: 0.01,
    words: "keeps the likeliest values that hold this share; 1 keeps all",
  },
};
const NO_LABEL = "needs a class to pull towards";
const text = (value) => String(Number(value.toFixed(3)));

/** Dials in a form. A link's very value is kept, where a slider could only come near. */
export class SamplingControls {
  /** @param {HTMLElement} place takes the dials @param {() => void} onChange */
  constructor(place, onChange = () => {}) {
    this.values = {};
    this.ranges = {};
    const prefix = place.id;
    for (const [name, { name: title, min, max, step, words }] of Object.entries(DIALS)) {
      const [field, label, value, hint] = ["div", "label", "span", "small"]
        .map((tag) => document.createElement(tag));
      const range = document.createElement("input");
      Object.assign(range, { id: `${prefix}-${name}`, name, type: "range", min, max, step });
      field.className = "field wide";
      value.className = "value";
      value.ariaHidden = "true";
      hint.className = "hint";
      hint.id = `${range.id}-words`;
      hint.textContent = words;
      label.htmlFor = range.id;
      label.textContent = title;
      range.setAttribute("aria-describedby", hint.id);
      range.addEventListener("input", () => {
        this.set(name, Number(range.value));
        onChange();
      });
      field.append(label, value, range, hint);
      place.append(field);
      this.ranges[name] = range;
    }
  }

  set(name, value) {
    this.values[name] = value;
    setRange(this.ranges[name], value, text(value));
  }

  /** Take a model, and what it likes best. */
  use(model) {
    this.model = model;
    this.ranges.guidance.closest(".field").hidden = !model.classes.length;
    this.take(new Map());
  }

  /** Take a link's values; the model's own where it names none. */
  take(fields) {
    const own = { temperature: 1, guidance: this.model.guidance, top_p: this.model.top_p };
    for (const [name, value] of Object.entries(own)) {
      const wanted = Number(fields.get(name) ?? NaN);
      this.set(name, Number.isFinite(wanted) ? wanted : value);
    }
  }

  /** Say whether there is a class to guide towards. */
  guided(yes) {
    const { guidance } = this.ranges;
    guidance.disabled = !yes;
    document.getElementById(`${guidance.id}-words`).textContent = yes ? DIALS.guidance.words : NO_LABEL;
  }

  /**
   * Give the fields of a request for a label or none. What the model would do by itself is named
   * all the same, so that a link draws the same when another checkpoint takes its place.
   */
  fields(label) {
    const { temperature, guidance, top_p: topP } = this.values;
    const plain = (value, own) => value === 1 && own === 1;
    return {
      temperature,
      ...(label ? { label } : {}),
      ...(label && !plain(guidance, this.model.guidance) ? { guidance } : {}),
      ...(plain(topP, this.model.top_p) ? {} : { top_p: topP }),
    };
  }
}
