/** Heat maps: the cost in bits of every pixel of a picture. */

const MAGMA = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];
const DIM = 110; // alpha of the pixels after the position

/** Return the colour of a share from 0 to 1. */
function magma(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (MAGMA.length - 1);
  const k = Math.floor(at);
  return MAGMA[k].map((low, c) => Math.round(low + (at - k) * (MAGMA[k + 1][c] - low)));
}

/** Return the bits that get the brightest colour: the 99.5th percentile, rounded up. */
export function scaleBits(bits) {
  const sorted = bits.toSorted((a, b) => a - b);
  return Math.max(1, Math.ceil(sorted[Math.floor(bits.length * 0.995)]));
}

/**
 * Paint a heat map.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} bits per pixel
 * @param {number} position the pixels from here on are dim, or absent if `hideRest`
 * @param {boolean} hideRest
 * @param {number} max bits of the brightest colour
 */
export function paintHeatmap(canvas, bits, position, hideRest, max = scaleBits(bits)) {
  const image = new ImageData(canvas.width, canvas.height);
  bits.forEach((cost, p) => {
    image.data.set([...magma(cost / max), p < position ? 255 : hideRest ? 0 : DIM], 4 * p);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Return the `count` pixels with the most bits, in decreasing order. */
export function mostSurprising(bits, count) {
  return Array.from(bits, (_, p) => p).sort((a, b) => bits[b] - bits[a]).slice(0, count);
}
