/** Form fields and link fields: number bounds, sliders, seeds and classes. */

const MAX_RANDOM_SEED = 100_000; // short enough to read out
const MAX_SEED = Number.MAX_SAFE_INTEGER - 63; // image k of 64 uses seed + k

/** Return a random seed. */
export const randomSeed = () => Math.floor(Math.random() * MAX_RANDOM_SEED);

/** Return the value of a number field, rounded and clamped to its bounds. */
export function readNumber(field, fallback) {
  const value = field.value === "" ? fallback : Math.round(Number(field.value));
  return Math.min(Number(field.max), Math.max(Number(field.min), value));
}

/** Set a slider and show its value, beside it and to screen readers. */
export function setRange(range, value, text) {
  range.value = value;
  range.closest(".field").querySelector(".value").textContent = text;
  range.ariaValueText = text;
}

/** Clear the seed field and call `draw` when the form's dice button is clicked. */
export function onDiceClick(form, draw) {
  form.querySelector("[data-dice]").addEventListener("click", () => {
    form.elements.seed.value = "";
    draw();
  });
}

/** Return true if a change of a control does not draw again: it has `data-keeps-pictures`. */
export const keepsPictures = (control) => control.closest("[data-keeps-pictures]") !== null;

/**
 * Return the seed of a link, or null if it names none. It applies to one drawing and fills no field.
 *
 * @throws if it is invalid
 */
export function parseSeed(fields) {
  const text = fields.get("seed");
  if (text === null) return null;
  if (/^\d+$/.test(text) && Number(text) <= MAX_SEED) return Number(text);
  throw new Error(`A seed is a whole number from 0 to ${MAX_SEED} here, not “${text}”.`);
}

/**
 * Return the class that a link names: by its name in any case, or by its number.
 *
 * @param {object} model
 * @param {string} wanted empty for no class
 * @param {{random?: boolean}} options `random`: accept "random", if the model has classes
 * @throws if the model has no such class
 */
export function resolveClass({ classes }, wanted, { random = false } = {}) {
  if (wanted === "" || classes.includes(wanted)) return wanted;
  if (random && wanted === "random" && classes.length) return wanted;
  const matches = classes.filter((name) => name.toLowerCase() === wanted.toLowerCase());
  if (matches.length === 1) return matches[0];
  const numbered = /^\d{1,9}$/.test(wanted) && classes[Number(wanted)];
  if (numbered) return numbered;
  throw new Error(`This model has no class “${wanted}”. Choose another one.`);
}

/** Return true if a model samples with guidance by default, which needs a class. */
export const usesGuidance = ({ classes, guidance }) => classes.length > 0 && guidance !== 1;
