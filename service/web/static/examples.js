/** Example pictures to complete, drawn by the model, and their background colour. */

import { drawPicture } from "./api.js";
import { pixelColour, pixelCount, toCanvas } from "./pixels.js";

/**
 * Seeds and class numbers of the examples. The top rows of the shipped model's digits fit several
 * digits: by its own estimate, those of the first one fit a 7 (28 %), a 3, an 8, a 5 or a 9.
 */
const EXAMPLES = [[35, 8], [48, 7], [40, 3], [27, 4], [50, 3], [43, 2]];
const TOP_SHARE = 2 / 7; // of an example's rows that are kept

/** Return the number of rows of an example to keep. */
export const exampleRows = ({ height }) => Math.max(1, Math.round(TOP_SHARE * height));

/** Draw the examples, of different classes if the model has classes. */
export async function drawExamples(model, onStatus) {
  const { classes } = model;
  return Promise.all(EXAMPLES.map(([seed, number], k) => drawPicture(model, {
    seed,
    ...(classes.length ? { label: classes[number % classes.length] } : {}),
  }, null, k ? undefined : onStatus))); // all requests wait for the same reason; one reports it
}

/** Create the placeholders of the examples. */
export const createPlaceholders = () => EXAMPLES.map(() => {
  const item = document.createElement("li");
  item.className = "placeholder";
  return item;
});

/** Create the button that picks an example. */
export function createThumbnail(picture, number, onPick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.ariaLabel = `Example ${number}: keep its top and complete it`;
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

/** Return the mean colour of the known pixels of a picture: its ink, if the paper is transparent. */
export function inkColour(picture) {
  const known = Array.from({ length: pixelCount(picture.shape) }, (_, p) => p)
    .filter((p) => picture.known?.[p] !== 0).map((p) => pixelColour(picture, p));
  return [0, 1, 2].map((c) => known.reduce((sum, rgb) => sum + rgb[c], 0) / (known.length || 1));
}

/** Return the luma of a colour, 0 to 255. */
export const lightness = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
