/** Comparisons: rows of images with the same seeds and another value of one field. */

import { usesGuidance } from "./fields.js";

const numberRows = (name, title, values) => (fields) =>
  values.map((value) => ({ title: `${title} ${value}`, fields: { ...fields, [name]: value } }));

const AXES = {
  temperature: numberRows("temperature", "Temperature", [0.85, 0.9, 1, 1.1, 1.2]),
  guidance: (fields) => numberRows("guidance", "Guidance", [1, 2, 3, 5, 8])(
    { ...fields, label: fields.label || "random" }),
  top_p: numberRows("top_p", "Top-p", [0.8, 0.9, 0.95, 0.98, 1]),
  label: (fields, model) => model.classes.map((label) =>
    ({ title: label, fields: { guidance: model.guidance, ...fields, label } })),
  model: (fields, _, models) => models.map((model) => {
    const { label: _1, guidance: _2, top_p: _3, ...rest } = fields; // each model has its own
    const defaults = usesGuidance(model) ? { label: "random", guidance: model.guidance } : {};
    return {
      title: model.id,
      model,
      fields: { ...rest, model: model.id, top_p: model.top_p, ...defaults },
    };
  }),
};

/** Fields that a comparison ignores, and the hint that says so. */
export const IGNORED_FIELDS = {
  label: { fields: ["label"], hint: "Each row is a class. The class chosen above is not used." },
  model: {
    fields: ["label", "guidance", "top_p"],
    hint: "Each model draws with its own defaults. Class, guidance and top-p are not used.",
  },
};

/** Return the fields that images of a model can be compared by. */
export const comparisonAxes = (model, models) => Object.keys(AXES).filter((name) =>
  (name === "model" ? models.length > 1 : model.classes.length || !["label", "guidance"].includes(name)));

/**
 * Return the rows of a comparison, one request each.
 *
 * @param {string} axis a comparison axis; anything else gives one row
 * @returns {{title: string | null, model: object, fields: object}[]}
 */
export function comparisonRows(axis, fields, model, models) {
  if (!comparisonAxes(model, models).includes(axis)) return [{ title: null, model, fields }];
  return AXES[axis](fields, model, models).map((row) => ({ model, ...row }));
}
