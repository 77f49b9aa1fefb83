/**
 * Animated PNG of a drawing. Each frame contains the rows that changed since the last one.
 * Programs without animation support show the default image: the finished picture, not a frame.
 */

import { LAST_FRAME_MS, exportScale, frameEnds } from "./animation.js";
import { pixelCount, scanlines } from "./pixels.js";
import { END_CHUNK, SIGNATURE, chunk, deflate, headerChunk, packBigEndian } from "./png.js";
import { recipeChunks } from "./recipe.js";

/**
 * Encode the drawing of a picture.
 *
 * @param {import("./pixels.js").Picture} picture
 * @param {number} seconds duration, without the extra time of the last frame
 * @param {string} drawn the server's PNG of the picture, whose recipe is added
 */
export async function encodeApng(picture, seconds, drawn) {
  const { width, height } = picture.shape;
  const scale = exportScale(picture.shape);
  const known = picture.known ?? new Uint8Array(pixelCount(picture.shape));
  const ends = frameEnds(picture);
  const parts = [
    SIGNATURE,
    headerChunk(width * scale, height * scale),
    ...recipeChunks(drawn, scale),
    chunk("acTL", packBigEndian([4, ends.length], [4, 0])),
    chunk("IDAT", await deflate(scanlines(picture, 0, height, scale, () => true))),
  ];
  let sequence = 0;
  for (const [k, end] of ends.entries()) {
    const top = k ? Math.floor(ends[k - 1] / width) : 0;
    const bottom = k ? Math.ceil(end / width) : height;
    const last = k === ends.length - 1;
    const delay = last ? LAST_FRAME_MS : Math.max(10, (1000 * seconds) / ends.length);
    parts.push(chunk("fcTL", packBigEndian(
      [4, sequence], [4, width * scale], [4, (bottom - top) * scale], [4, 0], [4, top * scale],
      [2, Math.round(delay)], [2, 1000], [1, 0], [1, 0],
    )));
    sequence += 1;
    const data = await deflate(scanlines(picture, top, bottom, scale, (p) => p < end || known[p]));
    parts.push(chunk("fdAT", Uint8Array.of(...packBigEndian([4, sequence]), ...data)));
    sequence += 1;
  }
  parts.push(END_CHUNK);
  return new Blob(parts, { type: "image/png" });
}
