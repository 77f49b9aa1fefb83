/** Pictures to start from, drawn by the model, and the paper they are drawn on. */

import { patiently, postJson } from "./api.js";
import { area, colour, toImageData } from "./pixels.js";

const COUNT = 6;
const FIRST_SEED = 23;

/** Have the model draw examples, each of another class if it has classes. */
export async function drawExamples(model) {
  const { id, classes } = model;
  const wanted = Array.from({ length: COUNT }, (_, k) => ({
    model: id, seed: FIRST_SEED + k, output: "values",
    ...(classes.length ? { label: classes[(3 + 4 * k) % classes.length] } : {}),
  }));
  const replies = await Promise.all(wanted.map((body) =>
    patiently(() => postJson("v1/samples", body))));
  return replies.map(({ images: [{ values }] }) =>
    ({ shape: model, values: Uint8Array.from(values), known: null }));
}

/** Make the places where the examples will be. */
export const places = () => Array.from({ length: COUNT }, () => {
  const item = document.createElement("li");
  item.className = "coming";
  return item;
});

/** Make the button that picks an example. */
export function thumbnail(picture, number, pick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const canvas = document.createElement("canvas");
  button.type = "button";
  button.ariaLabel = `Example ${number}: erase its lower half and complete it`;
  canvas.width = picture.shape.width;
  canvas.height = picture.shape.height;
  canvas.getContext("2d").putImageData(toImageData(picture), 0, 0);
  button.addEventListener("click", pick);
  button.append(canvas);
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
