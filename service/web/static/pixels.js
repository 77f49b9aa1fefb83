/** Pictures as plain arrays of values, and their ways in and out of the browser. */

import { END, SIGNATURE, chunk, deflate, header } from "./png.js";

/**
 * @typedef {{width: number, height: number, channels: number}} Shape
 * @typedef {{shape: Shape, values: Uint8Array, known: Uint8Array | null}} Picture
 *   `values` in raster order, channels innermost; `known` tells which pixels were given.
 */

/** Count the pixels of a shape. */
export const area = (shape) => shape.width * shape.height;

/** Fail where what is drawn has another shape than the page believes. */
export function checkShape(drawn, shape) {
  if (["width", "height", "channels"].every((name) => drawn[name] === shape[name])) return;
  throw new Error("The server has another model of this name now. Reload the page.");
}

/** Make an empty picture: black, or of one colour. */
export function blank(shape, rgb = [0, 0, 0]) {
  const values = new Uint8Array(area(shape) * shape.channels);
  return { shape, values: values.map((_, at) => rgb[at % shape.channels]), known: null };
}

/** Give a pixel's red, green and blue. */
export function colour({ shape: { channels }, values }, p) {
  const at = p * channels;
  return channels === 1
    ? [values[at], values[at], values[at]]
    : [values[at], values[at + 1], values[at + 2]];
}

/** Make ImageData of a picture; `visible(p)` says which pixels are not transparent. */
export function toImageData(picture, visible = () => true) {
  const { width, height } = picture.shape;
  const image = new ImageData(width, height);
  for (let p = 0; p < width * height; p += 1) {
    if (visible(p)) image.data.set([...colour(picture, p), 255], 4 * p);
  }
  return image;
}

/** Paint a picture on a canvas of its size. */
export function toCanvas(picture, visible) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: picture.shape.width, height: picture.shape.height });
  canvas.getContext("2d").putImageData(toImageData(picture, visible), 0, 0);
  return canvas;
}

/** Give the rows [top, bottom) as PNG scanlines, RGBA, each pixel `scale` wide and high. */
export function scanlines(picture, top, bottom, scale, visible) {
  const { width } = picture.shape;
  const line = 1 + 4 * width * scale;
  const bytes = new Uint8Array(line * (bottom - top) * scale);
  for (let y = top; y < bottom; y += 1) {
    const first = (y - top) * scale * line;
    for (let x = 0; x < width; x += 1) {
      const p = y * width + x;
      const rgba = visible(p) ? [...colour(picture, p), 255] : [0, 0, 0, 0];
      for (let k = 0; k < scale; k += 1) bytes.set(rgba, first + 1 + 4 * (x * scale + k));
    }
    bytes[first] = 1; // each byte less the one of the pixel to its left, which compresses better
    for (let k = line - 1; k > 4; k -= 1) bytes[first + k] -= bytes[first + k - 4];
    for (let k = 1; k < scale; k += 1) bytes.copyWithin(first + k * line, first, first + line);
  }
  return bytes;
}

/**
 * Encode a picture as PNG, transparent where `visible(p)` is false; each pixel `scale` wide. Not with a
 * canvas, of which browsers that guard against being recognised give other pixels than were put there.
 */
export async function toPng(picture, visible = () => true, scale = 1) {
  const { width, height } = picture.shape;
  const data = await deflate(scanlines(picture, 0, height, scale, visible));
  const parts = [SIGNATURE, header(width * scale, height * scale), chunk("IDAT", data), END];
  return new Blob(parts, { type: "image/png" });
}

/**
 * Read a file as a picture, its middle cropped; what was cut out is unknown. `wanted()` gives its
 * shape once it is decoded: by then another model may be chosen.
 */
export async function fromFile(file, wanted) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("That is no picture this browser can read.");
  });
  const shape = wanted();
  const canvas = new OffscreenCanvas(shape.width, shape.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.max(shape.width / bitmap.width, shape.height / bitmap.height);
  const [w, h] = [bitmap.width * scale, bitmap.height * scale];
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = scale !== 1;
  const [left, top] = [(shape.width - w) / 2, (shape.height - h) / 2];
  context.drawImage(shrunk(bitmap, w, h), left, top, w, h);
  const { data } = context.getImageData(0, 0, shape.width, shape.height);
  const picture = { ...blank(shape), known: new Uint8Array(area(shape)).fill(1) };
  // Photographs, which are opaque, are spared a look at each of their millions of pixels.
  const opaque = data.every((value, i) => i % 4 !== 3 || value === 255);
  if (!opaque) cutOut(picture.known, bitmap, shape, { scale, left, top });
  for (let p = 0; p < area(shape); p += 1) {
    const [r, g, b] = data.subarray(4 * p, 4 * p + 3);
    if (shape.channels === 1) picture.values[p] = Math.round(0.299 * r + 0.587 * g + 0.114 * b);
    else picture.values.set([r, g, b], 3 * p);
  }
  return picture;
}

/** Shrink to twice what is wanted, by no more than half at once: Firefox and WebKit would skip pixels. */
function shrunk(bitmap, width, height) {
  let image = bitmap;
  for (let k = Math.floor(Math.log2(bitmap.width / width)); k > 0; k -= 1) {
    const canvas = new OffscreenCanvas(Math.round(width * 2 ** k), Math.round(height * 2 ** k));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    image = canvas;
  }
  return image;
}

/** Make unknown what has a part in the bitmap's wholly transparent pixels. */
function cutOut(known, bitmap, shape, { scale, left, top }) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const pixels = new Uint32Array(data.buffer); // alpha comes last, and is highest
  const NEAR = 1e-6; // so that a rounding error has no part in the pixel beyond an edge
  const range = (at, shift, size) => [
    Math.max(0, Math.floor(at * scale + shift + NEAR)),
    Math.max(0, Math.min(size, Math.ceil((at + 1) * scale + shift - NEAR))),
  ];
  const columns = Array.from({ length: bitmap.width }, (_, x) => range(x, left, shape.width));
  const [first, end] = [0, 1].map((side) => Int32Array.from(columns, (column) => column[side]));
  for (let y = 0; y < bitmap.height; y += 1) {
    const [from, to] = range(y, top, shape.height);
    for (let x = 0; x < bitmap.width; x += 1) {
      if (pixels[y * bitmap.width + x] >>> 24) continue;
      for (let row = from; row < to; row += 1) {
        known.fill(0, row * shape.width + first[x], row * shape.width + end[x]);
      }
    }
  }
}

/** Turn a blob into text that fits into a link. */
export async function toText(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  // Not all at once: so many arguments a call does not take.
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Turn such text back into a blob. */
export function fromText(text) {
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return new Blob([Uint8Array.from(bytes, (c) => c.charCodeAt(0))], { type: "image/png" });
  } catch {
    throw new Error("That is no picture.");
  }
}

/** Hand a blob to the person as a file. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Safari may ask the person first
}
