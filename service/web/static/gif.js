/**
 * A GIF of a drawing, for where no animated PNG is shown. A frame has 256 colours of its own; what
 * has more of them is split into several frames, so that every colour is exact.
 */

import { LAST_MS, scaleOf, stopsOf } from "./animation.js";
import { area, colour } from "./pixels.js";

const MOST_COLOURS = 255; // one is transparent
const SHORTEST = 2; // hundredths of a second: less is shown as ten
const KEEP = 1; // what a frame painted stays

const two = (n) => [n & 255, n >> 8];

/** Pack codes of growing width, lowest bit first, into blocks of at most 255 bytes. */
class Bits {
  bytes = [];
  held = 0;
  count = 0;

  write(code, width) {
    this.held |= code << this.count;
    this.count += width;
    while (this.count >= 8) {
      this.bytes.push(this.held & 255);
      this.held >>>= 8;
      this.count -= 8;
    }
  }

  blocks() {
    if (this.count) this.bytes.push(this.held & 255);
    const result = [];
    for (let at = 0; at < this.bytes.length; at += 255) {
      const block = this.bytes.slice(at, at + 255);
      result.push(block.length, ...block);
    }
    return [...result, 0];
  }
}

/** Compress indexes of eight bits with LZW. */
function lzw(indexes) {
  const [clear, end] = [256, 257];
  const bits = new Bits();
  let [codes, width, next] = [new Map(), 9, end + 1];
  bits.write(clear, width);
  let prefix = indexes[0];
  for (const index of indexes.subarray(1)) {
    const key = prefix * 256 + index;
    const known = codes.get(key);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    bits.write(prefix, width);
    if (next === 4096) {
      bits.write(clear, width);
      [codes, width, next] = [new Map(), 9, end + 1];
    } else {
      codes.set(key, next);
      if (next === 1 << width) width += 1;
      next += 1;
    }
    prefix = index;
  }
  bits.write(prefix, width);
  bits.write(end, width);
  return [8, ...bits.blocks()];
}

/** Split pixels into parts of no more colours than a frame has; none are one part. */
function partsOf(picture, pixels) {
  const parts = [[]];
  let colours = new Set();
  for (const p of pixels) {
    colours.add(String(colour(picture, p)));
    if (colours.size > MOST_COLOURS) {
      parts.push([]);
      colours = new Set([String(colour(picture, p))]);
    }
    parts.at(-1).push(p);
  }
  return parts;
}

/** Give a frame: the rows that hold these pixels, in their order, the rest of them transparent. */
function frame(picture, pixels, scale, delay) {
  const { width } = picture.shape;
  const top = Math.floor((pixels[0] ?? 0) / width);
  const bottom = Math.floor((pixels.at(-1) ?? 0) / width) + 1;
  const [table, places] = [new Array(768).fill(0), new Map()];
  const line = width * scale;
  const indexes = new Uint8Array(line * (bottom - top) * scale).fill(MOST_COLOURS);
  for (const p of pixels) {
    const rgb = colour(picture, p);
    const key = String(rgb);
    if (!places.has(key)) {
      table.splice(3 * places.size, 3, ...rgb);
      places.set(key, places.size);
    }
    const left = (p % width) * scale;
    for (let y = 0; y < scale; y += 1) {
      const start = ((Math.floor(p / width) - top) * scale + y) * line + left;
      indexes.fill(places.get(key), start, start + scale);
    }
  }
  return [
    0x21, 0xf9, 4, (KEEP << 2) | 1, ...two(delay), MOST_COLOURS, 0,
    0x2c, 0, 0, ...two(top * scale), ...two(line), ...two((bottom - top) * scale), 0x87,
    ...table, ...lzw(indexes),
  ];
}

/** Encode the drawing of a picture that takes these seconds. */
export function encodeGif(picture, seconds) {
  const { shape } = picture;
  const scale = scaleOf(shape);
  const known = picture.known ?? new Uint8Array(area(shape));
  const stops = stopsOf(picture);
  const all = Array.from(known.keys());
  const frames = partsOf(picture, all.filter((p) => known[p])) // what was known comes quickly
    .map((pixels) => [pixels, SHORTEST]);
  const delay = (100 * seconds) / stops.length;
  for (const [k, stop] of stops.entries()) {
    if (!k) continue;
    const parts = partsOf(picture, all.slice(stops[k - 1], stop).filter((p) => !known[p]));
    const each = Math.max(SHORTEST, Math.round(delay / parts.length));
    frames.push(...parts.map((pixels) => [pixels, each]));
  }
  frames.at(-1)[1] = LAST_MS / 10;
  return new Blob([
    "GIF89a",
    Uint8Array.of(...two(shape.width * scale), ...two(shape.height * scale), 0, 0, 0,
      0x21, 0xff, 11),
    "NETSCAPE2.0",
    Uint8Array.of(3, 1, 0, 0, 0),
    ...frames.map(([pixels, pause]) => Uint8Array.from(frame(picture, pixels, scale, pause))),
    Uint8Array.of(0x3b),
  ], { type: "image/gif" });
}
