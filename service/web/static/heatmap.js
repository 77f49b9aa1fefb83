/** The heat map: what each pixel of a picture cost, in bits. */

const MAGMA = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];
const DIM = 110;

/** Give a colour for 0 … 1. */
function heat(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (MAGMA.length - 1);
  const k = Math.floor(at);
  return MAGMA[k].map((low, c) => Math.round(low + (at - k) * (MAGMA[k + 1][c] - low)));
}

/** Give the bits that the brightest colour stands for: nearly the most that a pixel cost. */
export function mostBits(bits) {
  const sorted = bits.toSorted((a, b) => a - b);
  return Math.max(1, Math.ceil(sorted[Math.floor(bits.length * 0.995)]));
}

/** Paint the pixels up to `position`; the rest dim, or `hidden` while it is still to come. */
export function paintHeat(canvas, bits, position, hidden, most = mostBits(bits)) {
  const image = new ImageData(canvas.width, canvas.height);
  bits.forEach((cost, p) => {
    image.data.set([...heat(cost / most), p < position ? 255 : hidden ? 0 : DIM], 4 * p);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Give the pixels that cost most, the costliest first. */
export function surprises(bits, count) {
  return Array.from(bits, (_, p) => p).sort((a, b) => bits[b] - bits[a]).slice(0, count);
}
