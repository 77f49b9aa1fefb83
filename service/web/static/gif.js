/**
 * Animated GIF of a drawing. A GIF frame has at most 256 colours. Pixels with more colours are split
 * into several frames, so that every colour is exact.
 */

import { pixelColour, pixelCount } from "./pixels.js";

const FRAMES = 80;
const SIZE = 280; // maximum width in pixels
const MONTAGE_SIZE = 400; // maximum width of several pictures
const LAST_FRAME_MS = 2000;
const MAX_COLOURS = 255; // plus one for transparency
const MIN_DELAY = 2; // hundredths of a second; browsers replace shorter delays by 10
const DO_NOT_DISPOSE = 1; // the next frame is painted over this one

const uint16 = (n) => [n & 255, n >> 8];

/** Packs codes of varying width, lowest bit first, into sub-blocks of at most 255 bytes. */
class BitWriter {
  bytes = [];
  buffer = 0;
  bitCount = 0;

  write(code, width) {
    this.buffer |= code << this.bitCount;
    this.bitCount += width;
    while (this.bitCount >= 8) {
      this.bytes.push(this.buffer & 255);
      this.buffer >>>= 8;
      this.bitCount -= 8;
    }
  }

  toBlocks() {
    if (this.bitCount) this.bytes.push(this.buffer & 255);
    const result = [];
    for (let at = 0; at < this.bytes.length; at += 255) {
      const block = this.bytes.slice(at, at + 255);
      result.push(block.length, ...block);
    }
    return [...result, 0];
  }
}

/** Compress 8-bit indexes with LZW. */
function lzw(indexes) {
  const [clear, end] = [256, 257];
  const writer = new BitWriter();
  let [codes, width, next] = [new Map(), 9, end + 1];
  writer.write(clear, width);
  let prefix = indexes[0];
  for (const index of indexes.subarray(1)) {
    const key = prefix * 256 + index;
    const known = codes.get(key);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    writer.write(prefix, width);
    if (next === 4096) {
      writer.write(clear, width);
      [codes, width, next] = [new Map(), 9, end + 1];
    } else {
      codes.set(key, next);
      if (next === 1 << width) width += 1;
      next += 1;
    }
    prefix = index;
  }
  writer.write(prefix, width);
  writer.write(end, width);
  return [8, ...writer.toBlocks()];
}

/** Split pixels into groups of at most `MAX_COLOURS` colours; no pixels are one empty group. */
function splitByColours(picture, pixels) {
  const groups = [[]];
  let colours = new Set();
  for (const p of pixels) {
    colours.add(String(pixelColour(picture, p)));
    if (colours.size > MAX_COLOURS) {
      groups.push([]);
      colours = new Set([String(pixelColour(picture, p))]);
    }
    groups.at(-1).push(p);
  }
  return groups;
}

/** Encode a frame: the rows of these pixels (in raster order), with all others transparent. */
function encodeFrame(picture, pixels, scale, delay) {
  const { width } = picture.shape;
  const top = Math.floor((pixels[0] ?? 0) / width);
  const bottom = Math.floor((pixels.at(-1) ?? 0) / width) + 1;
  const [palette, paletteIndex] = [new Array(768).fill(0), new Map()];
  const line = width * scale;
  const indexes = new Uint8Array(line * (bottom - top) * scale).fill(MAX_COLOURS);
  for (const p of pixels) {
    const rgb = pixelColour(picture, p);
    const key = String(rgb);
    if (!paletteIndex.has(key)) {
      palette.splice(3 * paletteIndex.size, 3, ...rgb);
      paletteIndex.set(key, paletteIndex.size);
    }
    const left = (p % width) * scale;
    for (let y = 0; y < scale; y += 1) {
      const start = ((Math.floor(p / width) - top) * scale + y) * line + left;
      indexes.fill(paletteIndex.get(key), start, start + scale);
    }
  }
  return [
    0x21, 0xf9, 4, (DO_NOT_DISPOSE << 2) | 1, ...uint16(delay), MAX_COLOURS, 0,
    0x2c, 0, 0, ...uint16(top * scale), ...uint16(line), ...uint16((bottom - top) * scale), 0x87,
    ...palette, ...lzw(indexes),
  ];
}

/**
 * Return the number of pixels shown at the end of each frame. The first frame shows only the known pixels.
 *
 * @param {import("./pixels.js").Picture} picture
 */
function frameEnds({ shape, known }) {
  const total = pixelCount(shape);
  const start = known?.includes(0) ? known.indexOf(0) : known ? total : 0;
  const ends = [start];
  for (let k = 1; k <= FRAMES; k += 1) {
    const end = start + Math.round(((total - start) * k) / FRAMES);
    if (end > ends.at(-1)) ends.push(end);
  }
  return ends;
}

/**
 * Encode the drawing of a picture, or of a montage.
 *
 * @param {import("./pixels.js").Picture} picture
 * @param {number} seconds duration, without the extra time of the last frame
 */
export function encodeGif(picture, seconds) {
  const { shape, order } = picture;
  const scale = Math.max(1, Math.floor((order ? MONTAGE_SIZE : SIZE) / shape.width));
  const known = picture.known ?? new Uint8Array(pixelCount(shape));
  const ends = frameEnds(picture.tile ?? picture);
  const all = Array.from(known.keys());
  const frames = splitByColours(picture, all.filter((p) => known[p]))
    .map((pixels) => [pixels, MIN_DELAY]);
  const delay = (100 * seconds) / ends.length;
  for (const [k, end] of ends.entries()) {
    if (!k) continue;
    const isNew = (p) => !known[p] && (order?.[p] ?? p) >= ends[k - 1] && (order?.[p] ?? p) < end;
    const groups = splitByColours(picture, all.filter(isNew));
    const each = Math.max(MIN_DELAY, Math.round(delay / groups.length));
    frames.push(...groups.map((pixels) => [pixels, each]));
  }
  frames.at(-1)[1] = LAST_FRAME_MS / 10;
  return new Blob([
    "GIF89a",
    Uint8Array.of(...uint16(shape.width * scale), ...uint16(shape.height * scale), 0, 0, 0,
      0x21, 0xff, 11),
    "NETSCAPE2.0", // loops forever
    Uint8Array.of(3, 1, 0, 0, 0),
    ...frames.map(([pixels, pause]) => Uint8Array.from(encodeFrame(picture, pixels, scale, pause))),
    Uint8Array.of(0x3b),
  ], { type: "image/gif" });
}
