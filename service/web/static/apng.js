/**
 * An animated PNG of a drawing: each frame is the band of rows that changed since the last. What
 * shows no animation shows the default image, which is the finished one and no frame.
 */

import { END, SIGNATURE, chunk, deflate, header, pack, text } from "./png.js";
import { LAST_MS, scaleOf, stopsOf } from "./animation.js";
import { area, scanlines } from "./pixels.js";

/**
 * Encode the drawing of a picture.
 *
 * @param {import("./pixels.js").Picture} picture
 * @param {number} seconds how long it takes, the last look not counted
 * @param {string} made the hash of the link that draws it again
 */
export async function encodeDrawing(picture, seconds, made) {
  const { width } = picture.shape;
  const scale = scaleOf(picture.shape);
  const known = picture.known ?? new Uint8Array(area(picture.shape));
  const stops = stopsOf(picture);
  const parts = [
    SIGNATURE,
    header(width * scale, picture.shape.height * scale),
    text(made),
    chunk("acTL", pack([4, stops.length], [4, 0])),
    chunk("IDAT", await deflate(scanlines(picture, 0, picture.shape.height, scale, () => true))),
  ];
  let sequence = 0;
  for (const [k, stop] of stops.entries()) {
    const top = k ? Math.floor(stops[k - 1] / width) : 0;
    const bottom = k ? Math.ceil(stop / width) : picture.shape.height;
    const final = k === stops.length - 1;
    const delay = final ? LAST_MS : Math.max(10, (1000 * seconds) / stops.length);
    parts.push(chunk("fcTL", pack(
      [4, sequence], [4, width * scale], [4, (bottom - top) * scale], [4, 0], [4, top * scale],
      [2, Math.round(delay)], [2, 1000], [1, 0], [1, 0],
    )));
    sequence += 1;
    const data = await deflate(scanlines(picture, top, bottom, scale, (p) => p < stop || known[p]));
    parts.push(chunk("fdAT", Uint8Array.of(...pack([4, sequence]), ...data)));
    sequence += 1;
  }
  parts.push(END);
  return new Blob(parts, { type: "image/png" });
}
