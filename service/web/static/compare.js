/** What drawings can be compared by: the same seeds, row by row with another value of one thing. */

import { guides } from "./fields.js";

const number = (name, title, values) => (fields) =>
  values.map((value) => ({ title: `${title} ${value}`, fields: { ...fields, [name]: value } }));

const AXES = {
  temperature: number("temperature", "Temperature", [0.85, 0.9, 1, 1.1, 1.2]),
  guidance: (fields) => number("guidance", "Guidance", [1, 2, 3, 5, 8])(
    { ...fields, label: fields.label || "random" }),
  top_p: number("top_p", "Top-p", [0.8, 0.9, 0.95, 0.98, 1]),
  label: (fields, model) => model.classes.map((label) =>
    ({ title: label, fields: { guidance: model.guidance, ...fields, label } })),
  model: (fields, _, models) => models.map((model) => {
    const { label: _1, guidance: _2, top_p: _3, ...rest } = fields; // a class's own, and a model's
    const best = guides(model) ? { label: "random", guidance: model.guidance } : {};
    return { title: model.id, model, fields: { ...rest, model: model.id, top_p: model.top_p, ...best } };
  }),
};

/** What a comparison does not heed of what was chosen, and how that is said. */
export const UNHEEDED = {
  label: { fields: ["label"], said: "Each row is a class, so the one chosen above does not count." },
  model: {
    fields: ["label", "guidance", "top_p"],
    said: "Each model draws as it does by itself: class, guidance and top-p do not count.",
  },
};

/** Say what a model can be compared by, beside others. */
export const axesOf = (model, models) => Object.keys(AXES).filter((name) =>
  (name === "model" ? models.length > 1 : model.classes.length || !["label", "guidance"].includes(name)));

/**
 * Give the requests of a comparison, one a row.
 *
 * @param {string} by an axis, or nothing for one row
 * @returns {{title: string | null, model: object, fields: object}[]}
 */
export function rowsOf(by, fields, model, models) {
  if (!axesOf(model, models).includes(by)) return [{ title: null, model, fields }];
  return AXES[by](fields, model, models).map((row) => ({ model, ...row }));
}
