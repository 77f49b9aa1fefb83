/** Several pictures beside each other as one, for saving. */

import { pixelCount } from "./pixels.js";

export const MAX_PICTURES = 12; // more would be too small, and their animation too large
const GAP = 2;
const GAP_VALUE = 96;

/**
 * Lay pictures of one shape out in a grid. A single picture is returned as it is.
 *
 * @param {import("./pixels.js").Picture[]} pictures
 * @returns {import("./pixels.js").Picture & {order?: Uint32Array, tile?: object, drawn?: string[]}} `order`: the
 *   position of each pixel in its own picture, in which order an animation shows them; `tile`: the
 *   first picture; `drawn`: the server's PNG of each
 */
export function montage(pictures) {
  const [tile, ...others] = pictures;
  if (!others.length) return tile;
  const shown = pictures.slice(0, MAX_PICTURES);
  const { width, height, channels } = tile.shape;
  const columns = Math.ceil(Math.sqrt(shown.length));
  const rows = Math.ceil(shown.length / columns);
  const shape = { width: columns * (width + GAP) - GAP, height: rows * (height + GAP) - GAP, channels };
  const values = new Uint8Array(pixelCount(shape) * channels).fill(GAP_VALUE);
  const known = new Uint8Array(pixelCount(shape)).fill(1);
  const order = new Uint32Array(pixelCount(shape));
  for (const [k, picture] of shown.entries()) {
    const left = (k % columns) * (width + GAP);
    const top = Math.floor(k / columns) * (height + GAP);
    for (let p = 0; p < width * height; p += 1) {
      const at = (top + Math.floor(p / width)) * shape.width + left + (p % width);
      values.set(picture.values.subarray(p * channels, (p + 1) * channels), at * channels);
      known[at] = picture.known?.[p] ?? 0;
      order[at] = p;
    }
  }
  return { shape, values, known, order, tile, drawn: shown.map(({ drawn }) => drawn) };
}
