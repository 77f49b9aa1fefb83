/** Sliders for the sampling parameters: temperature, guidance and top-p. */

import { setRange } from "./fields.js";

/** The sliders by the names of their request fields. A neutral value changes nothing. */
const SLIDERS = {
  temperature: {
    label: "Temperature", min: 0, max: 1.5, step: 0.05, neutral: 1,
    hint: "1 is what the model learned. Less is plainer; much less can leave the picture empty.",
  },
  guidance: {
    label: "Guidance", min: 0, max: 10, step: 0.25, neutral: 1,
    hint: "Pulls towards the class. 1 is what the model learned; more is plainer and less varied.",
  },
  top_p: {
    label: "Top-p", min: 0.5, max: 1, step: 0.01, neutral: 1,
    hint: "Keeps the most likely values that together have this share; 1 keeps all.",
  },
};

/** Names of the sampling parameters, in requests, links and recipes. */
export const SAMPLING = Object.keys(SLIDERS);

/** Return the value that a model draws with if a request does not name the parameter. */
const defaultOf = (model, name) => model[name] ?? SLIDERS[name].neutral;

/** Return the sampling values of a link; the model's defaults for values that it does not name. */
export function samplingOf(model, link) {
  return Object.fromEntries(SAMPLING.map((name) => {
    const value = Number(String(link.get(name) ?? "") || NaN); // not Number(""), which is 0
    return [name, Number.isFinite(value) ? value : defaultOf(model, name)];
  }));
}

/**
 * Return the request fields of sampling values for a label, or for none. The model's defaults are
 * included unless they are neutral, so that a link draws the same after the checkpoint is replaced.
 */
export function samplingFields(model, values, label) {
  const sent = SAMPLING.filter((name) => {
    if (name === "guidance" && !label) return false;
    const { neutral } = SLIDERS[name];
    return name === "temperature" || values[name] !== neutral || defaultOf(model, name) !== neutral;
  });
  return {
    ...Object.fromEntries(sent.map((name) => [name, values[name]])), ...(label ? { label } : {}),
  };
}

const NEEDS_CLASS = "Choose a class to use guidance.";
const formatValue = (value) => String(Number(value.toFixed(3)));

/** Sampling sliders in a form. The exact value of a link is kept, even between two slider steps. */
export class SamplingControls {
  /** @param {HTMLElement} container receives the sliders @param {() => void} onChange */
  constructor(container, onChange = () => {}) {
    this.values = {};
    this.ranges = {};
    const prefix = container.id;
    for (const [name, { label: title, min, max, step, hint: text }] of Object.entries(SLIDERS)) {
      const [field, label, value, hint] = ["div", "label", "span", "small"]
        .map((tag) => document.createElement(tag));
      const range = document.createElement("input");
      Object.assign(range, { id: `${prefix}-${name}`, name, type: "range", min, max, step });
      field.className = "field wide";
      value.className = "value";
      value.ariaHidden = "true";
      hint.className = "hint";
      hint.id = `${range.id}-hint`;
      hint.textContent = text;
      label.htmlFor = range.id;
      label.textContent = title;
      range.setAttribute("aria-describedby", hint.id);
      range.addEventListener("input", () => {
        this.set(name, Number(range.value));
        onChange();
      });
      field.append(label, value, range, hint);
      container.append(field);
      this.ranges[name] = range;
    }
  }

  set(name, value) {
    this.values[name] = value;
    setRange(this.ranges[name], value, formatValue(value));
  }

  /** Switch to a model and its default values. */
  setModel(model) {
    this.model = model;
    this.ranges.guidance.closest(".field").hidden = !model.classes.length;
    this.setFromLink(new Map());
  }

  /** Set the values of a link; the model's defaults for values that it does not name. */
  setFromLink(fields) {
    for (const [name, value] of Object.entries(samplingOf(this.model, fields))) this.set(name, value);
  }

  /** Set the neutral values, with which the model's own distribution stays as it is. */
  setNeutral() {
    for (const [name, { neutral }] of Object.entries(SLIDERS)) this.set(name, neutral);
  }

  /** Enable guidance if a class is chosen. */
  enableGuidance(enabled) {
    const { guidance } = this.ranges;
    guidance.disabled = !enabled;
    document.getElementById(`${guidance.id}-hint`).textContent =
      enabled ? SLIDERS.guidance.hint : NEEDS_CLASS;
  }

  /** Return the request fields for a label, or for none. */
  fields(label) {
    return samplingFields(this.model, this.values, label);
  }
}
