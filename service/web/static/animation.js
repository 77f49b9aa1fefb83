/** The frames of a drawing that is saved to be watched. */

import { area } from "./pixels.js";

const FRAMES = 80;
const SIDE = 280;
export const LAST_MS = 2000;

/** Give the width of a pixel. */
export const scaleOf = ({ width }) => Math.max(1, Math.floor(SIDE / width));

/**
 * Give the pixel counts after which the frames of a drawing stop: the first is what was known.
 *
 * @param {import("./pixels.js").Picture} picture
 */
export function stopsOf({ shape, known }) {
  const total = area(shape);
  const start = known?.includes(0) ? known.indexOf(0) : known ? total : 0;
  const stops = [start];
  for (let k = 1; k <= FRAMES; k += 1) {
    const stop = start + Math.round(((total - start) * k) / FRAMES);
    if (stop > stops.at(-1)) stops.push(stop);
  }
  return stops;
}
