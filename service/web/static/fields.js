/** Form fields: numbers within bounds, ranges that say their value, and seeds. */

const MAX_RANDOM = 100_000; // short enough to be read out to somebody
const MAX_SEED = Number.MAX_SAFE_INTEGER - 63; // of 64 images, whose seeds count up from it

/** A seed nobody chose. */
export const randomSeed = () => Math.floor(Math.random() * MAX_RANDOM);

/** Fit a number field's text between its bounds. */
export function readNumber(field, fallback) {
  const value = field.value === "" ? fallback : Math.round(Number(field.value));
  return Math.min(Number(field.max), Math.max(Number(field.min), value));
}

/** Set a range and say its value, beside it and to a screen reader. */
export function setRange(range, value, text) {
  range.value = value;
  range.closest(".field").querySelector(".value").textContent = text;
  range.ariaValueText = text;
}

/** Have a form's dice forget the seed that was typed, and draw. */
export function listenToDice(form, draw) {
  form.querySelector("[data-dice]").addEventListener("click", () => {
    form.elements.seed.value = "";
    draw();
  });
}

/**
 * Disable buttons; gives what enables some of them again, where the focus returns that one of them
 * lost by this, unless something else has had it since.
 */
export function hold(...buttons) {
  const held = new AbortController();
  let lost = buttons.find((button) => button === document.activeElement);
  for (const button of buttons) button.disabled = true;
  document.addEventListener("focusin", () => { lost = null; }, { signal: held.signal });
  return (...again) => {
    held.abort();
    for (const button of again) button.disabled = false;
    if (lost) (again.includes(lost) ? lost : again[0]).focus({ preventScroll: true });
  };
}

/** Read a link's seed; it is for this drawing alone, and fills no field. */
export function seedOf(fields) {
  const seed = Number(fields.get("seed"));
  return fields.has("seed") && Number.isInteger(seed) && seed >= 0 && seed <= MAX_SEED ? seed : null;
}

/** Say that a link asks for a seed which is none. */
export const noSeed = (seed) =>
  `A seed is a whole number from 0 to ${MAX_SEED} here, not “${seed}”.`;

/** Give the class that a link means: its name, in other letters too, or its number. */
export function classOf({ classes }, wanted) {
  if (classes.includes(wanted)) return wanted;
  const alike = classes.filter((name) => name.toLowerCase() === wanted.toLowerCase());
  if (alike.length === 1) return alike[0];
  return (/^\d{1,9}$/.test(wanted) && classes[Number(wanted)]) || wanted;
}

/** Say that a link asks for a class which the model has not. */
export const noClass = (label) => `This model has no class “${label}”.`;

/** Leave out what is not given. */
export const given = (fields) => Object.fromEntries(
  Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""),
);

/** Whether a model draws better of a class: unlabelled, nothing can be guided. */
export const guides = ({ classes, guidance }) => classes.length > 0 && guidance !== 1;
