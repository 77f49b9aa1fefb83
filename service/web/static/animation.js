/** Frames of an exported animation of a drawing. */

import { pixelCount } from "./pixels.js";

const FRAMES = 80;
const SIZE = 280; // maximum width in pixels
const MONTAGE_SIZE = 400; // maximum width of several pictures
export const LAST_FRAME_MS = 2000;

/** Return the enlargement of each pixel. */
export const exportScale = ({ width }, several = false) =>
  Math.max(1, Math.floor((several ? MONTAGE_SIZE : SIZE) / width));

/**
 * Return the number of pixels shown at the end of each frame. The first frame shows only the known pixels.
 *
 * @param {import("./pixels.js").Picture} picture
 */
export function frameEnds({ shape, known }) {
  const total = pixelCount(shape);
  const start = known?.includes(0) ? known.indexOf(0) : known ? total : 0;
  const ends = [start];
  for (let k = 1; k <= FRAMES; k += 1) {
    const end = start + Math.round(((total - start) * k) / FRAMES);
    if (end > ends.at(-1)) ends.push(end);
  }
  return ends;
}
