/** Pictures as plain arrays of values, and their ways in and out of the browser. */

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

/** Encode a picture as PNG, transparent where `visible(p)` is false; each pixel `scale` wide. */
export async function toPng(picture, visible, scale = 1) {
  const { width, height } = picture.shape;
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").putImageData(toImageData(picture, visible), 0, 0);
  if (scale === 1) return canvas.convertToBlob({ type: "image/png" });
  const large = new OffscreenCanvas(scale * width, scale * height);
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large.convertToBlob({ type: "image/png" });
}

/** Read a file as a picture of the given shape, its middle cropped; what was cut out is unknown. */
export async function fromFile(file, shape) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("That is no picture this browser can read.");
  });
  const canvas = new OffscreenCanvas(shape.width, shape.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.max(shape.width / bitmap.width, shape.height / bitmap.height);
  const [w, h] = [bitmap.width * scale, bitmap.height * scale];
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = scale !== 1;
  const [left, top] = [(shape.width - w) / 2, (shape.height - h) / 2];
  context.drawImage(bitmap, left, top, w, h);
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
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
