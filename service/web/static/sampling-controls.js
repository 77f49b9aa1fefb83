/** Sliders for the sampling parameters: temperature, guidance and top-p. */

import { setRange } from "./fields.js";

const SLIDERS = {
  temperature: {
    label: "Temperature", min: 0, max: 1.5, step: 0.05,
    hint: "1 is what the model learned. Less is plainer; much less can leave the picture empty.",
  },
  guidance: {
    label: "Guidance", min: 0, max: 10, step: 0.25,
    hint: "Pulls towards the class. 1 is what the model learned; more is plainer and less varied.",
  },
  top_p: {
    label: "Top-p", min: 0.5, max: 1, step: 0.01,
    hint: "Keeps the most likely values that together have this share; 1 keeps all.",
  },
};
/** Return the sampling values of a link; the model's defaults for values that it does not name. */
export function samplingOf(model, link) {
  const defaults = { temperature: 1, guidance: model.guidance, top_p: model.top_p };
  return Object.fromEntries(Object.entries(defaults).map(([name, fallback]) => {
    const value = Number(link.get(name) ?? NaN);
    return [name, Number.isFinite(value) ? value : fallback];
  }));
}

/**
 * Return the request fields of sampling values for a label, or for none. The model's defaults are
 * included unless they are 1, so that a link draws the same after the checkpoint is replaced.
 */
export function samplingFields(model, { temperature, guidance, top_p: topP }, label) {
  const omitted = (value, fallback) => value === 1 && fallback === 1;
  return {
    temperature,
    ...(label ? { label } : {}),
    ...(label && !omitted(guidance, model.guidance) ? { guidance } : {}),
    ...(omitted(topP, model.top_p) ? {} : { top_p: topP }),
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
