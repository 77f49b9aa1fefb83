/** Example pictures to complete, drawn by the model, and their background colour. */

import { drawPicture } from "./api.js";
import { pixelColour, pixelCount, toCanvas } from "./pixels.js";

const COUNT = 6;
const FIRST_SEED = 23;

/** Draw the examples, of different classes if the model has classes. */
export async function drawExamples(model, onStatus) {
  const { classes } = model;
  return Promise.all(Array.from({ length: COUNT }, (_, k) => drawPicture(model, {
    seed: FIRST_SEED + k,
    ...(classes.length ? { label: classes[(3 + 3 * k) % classes.length] } : {}),
  }, null, k ? undefined : onStatus))); // all requests wait for the same reason; one reports it
}

/** Create the placeholders of the examples. */
export const createPlaceholders = () => Array.from({ length: COUNT }, () => {
  const item = document.createElement("li");
  item.className = "placeholder";
  return item;
});

/** Create the button that picks an example. */
export function createThumbnail(picture, number, onPick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.ariaLabel = `Example ${number}: erase its lower half and complete it`;
  button.addEventListener("click", onPick);
  button.append(toCanvas(picture));
  item.append(button);
  return item;
}

/** Return the background colour of pictures: the median of their known border pixels. */
export function backgroundColour(pictures) {
  const border = pictures.flatMap((picture) => {
    const { width, height } = picture.shape;
    return Array.from({ length: pixelCount(picture.shape) }, (_, p) => p)
      .filter((p) => picture.known?.[p] !== 0
        && (p < width || p >= width * (height - 1) || p % width === 0 || p % width === width - 1))
      .map((p) => pixelColour(picture, p));
  });
  return [0, 1, 2].map((c) => {
    const sorted = border.map((rgb) => rgb[c]).sort((a, b) => a - b);
    return sorted[sorted.length >> 1] ?? 0;
  });
}

/** Return the luma of a colour, 0 to 255. */
export const lightness = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
