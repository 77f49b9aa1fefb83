/** Pictures as arrays of values: conversion to canvases, PNG files and base64. */

import { END_CHUNK, SIGNATURE, chunk, deflate, headerChunk } from "./png.js";

/**
 * @typedef {{width: number, height: number, channels: number}} Shape
 * @typedef {{shape: Shape, values: Uint8Array, known: Uint8Array | null}} Picture
 *   `values`: height × width × channels, in raster order. `known`: 1 for each given pixel, 0 for
 *   each pixel to draw.
 */

/** Return the number of pixels of a shape. */
export const pixelCount = (shape) => shape.width * shape.height;

/** Throw if the server draws another shape than the page expects. */
export function checkShape(drawn, shape) {
  if (["width", "height", "channels"].every((name) => drawn[name] === shape[name])) return;
  throw new Error("The server has another model of this name now. Reload the page.");
}

/** Return a black picture. */
export function blankPicture(shape) {
  return { shape, values: new Uint8Array(pixelCount(shape) * shape.channels), known: null };
}

/** Return red, green and blue of pixel `p`. */
export function pixelColour({ shape: { channels }, values }, p) {
  const at = p * channels;
  return channels === 1
    ? [values[at], values[at], values[at]]
    : [values[at], values[at + 1], values[at + 2]];
}

/** Convert a picture to ImageData; pixels for which `visible(p)` is false are transparent. */
export function toImageData(picture, visible = () => true) {
  const { width, height } = picture.shape;
  const image = new ImageData(width, height);
  for (let p = 0; p < width * height; p += 1) {
    if (visible(p)) image.data.set([...pixelColour(picture, p), 255], 4 * p);
  }
  return image;
}

/** Return a new canvas that shows a picture at one canvas pixel per picture pixel. */
export function toCanvas(picture, visible) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: picture.shape.width, height: picture.shape.height });
  canvas.getContext("2d").putImageData(toImageData(picture, visible), 0, 0);
  return canvas;
}

/** Return a picture as RGBA PNG scanlines, each pixel enlarged to scale × scale. */
function scanlines(picture, scale, visible) {
  const { width, height } = picture.shape;
  const line = 1 + 4 * width * scale;
  const bytes = new Uint8Array(line * height * scale);
  for (let y = 0; y < height; y += 1) {
    const first = y * scale * line;
    for (let x = 0; x < width; x += 1) {
      const p = y * width + x;
      const rgba = visible(p) ? [...pixelColour(picture, p), 255] : [0, 0, 0, 0];
      for (let k = 0; k < scale; k += 1) bytes.set(rgba, first + 1 + 4 * (x * scale + k));
    }
    bytes[first] = 1; // PNG filter "Sub": differences to the left pixel compress better
    for (let k = line - 1; k > 4; k -= 1) bytes[first + k] -= bytes[first + k - 4];
    for (let k = 1; k < scale; k += 1) bytes.copyWithin(first + k * line, first, first + line);
  }
  return bytes;
}

/**
 * Encode a picture as PNG. Not through a canvas, because browsers that resist fingerprinting
 * change the pixels that are read from a canvas.
 *
 * @param {Picture} picture
 * @param {(p: number) => boolean} visible other pixels are transparent
 * @param {number} scale enlarges each pixel to scale × scale
 */
export async function toPng(picture, visible = () => true, scale = 1) {
  const { width, height } = picture.shape;
  const data = await deflate(scanlines(picture, scale, visible));
  const header = headerChunk(width * scale, height * scale);
  const parts = [SIGNATURE, header, chunk("IDAT", data), END_CHUNK];
  return new Blob(parts, { type: "image/png" });
}

/** Encode a blob as URL-safe base64. */
export async function toBase64Url(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  // Byte by byte, because a call accepts only a limited number of arguments.
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Decode URL-safe base64 to a PNG blob. */
export function fromBase64Url(text) {
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return new Blob([Uint8Array.from(bytes, (c) => c.charCodeAt(0))], { type: "image/png" });
  } catch {
    throw new Error("The picture in this link is damaged. Copy the whole link again.");
  }
}

/** Save a blob as a file on the visitor's device. */
export function downloadBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Safari may ask for confirmation first
}
