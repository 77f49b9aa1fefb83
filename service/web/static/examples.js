/** Pictures to start from, drawn by the model, and the paper they are drawn on. */

import { drawn } from "./api.js";
import { area, colour, toCanvas } from "./pixels.js";

const COUNT = 6;
const FIRST_SEED = 23;

/** Have the model draw examples, each of another class if it has classes; `say` hears why they do not come. */
export async function drawExamples(model, say) {
  const { classes } = model;
  return Promise.all(Array.from({ length: COUNT }, (_, k) => drawn(model, {
    seed: FIRST_SEED + k,
    ...(classes.length ? { label: classes[(3 + 3 * k) % classes.length] } : {}),
  }, null, k ? undefined : say))); // all wait for the same
}

/** Make the places where the examples will be. */
export const places = () => Array.from({ length: COUNT }, () => {
  const item = document.createElement("li");
  item.className = "placeholder";
  return item;
});

/** Make the button that picks an example. */
export function thumbnail(picture, number, pick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.ariaLabel = `Example ${number}: erase its lower half and complete it`;
  button.addEventListener("click", pick);
  button.append(toCanvas(picture));
  item.append(button);
  return item;
}

/** Give the colour of the paper under pictures: the median of their known borders. */
export function paperOf(pictures) {
  const border = pictures.flatMap((picture) => {
    const { width, height } = picture.shape;
    return Array.from({ length: area(picture.shape) }, (_, p) => p)
      .filter((p) => picture.known?.[p] !== 0
        && (p < width || p >= width * (height - 1) || p % width === 0 || p % width === width - 1))
      .map((p) => colour(picture, p));
  });
  return [0, 1, 2].map((c) => {
    const sorted = border.map((rgb) => rgb[c]).sort((a, b) => a - b);
    return sorted[sorted.length >> 1] ?? 0;
  });
}

/** Say how light a colour is, 0 … 255. */
export const lightness = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
