/**
 * A GIF of a drawing, for where no animated PNG is shown. A frame has 256 colours of its own; frames
 * are kept to a few rows, so that every colour is exact.
 */

import { LAST_MS, scaleOf, stopsOf } from "./frames.js";
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

/** Give a frame: the rows [top, bottom) with the pixels that are visible. */
function frame(picture, top, bottom, scale, delay, visible) {
  const { width } = picture.shape;
  const [table, places] = [new Array(768).fill(0), new Map()];
  const line = width * scale;
  const indexes = new Uint8Array(line * (bottom - top) * scale).fill(MOST_COLOURS);
  for (let p = top * width; p < bottom * width; p += 1) {
    if (!visible(p)) continue;
    const rgb = colour(picture, p);
    const key = String(rgb);
    if (!places.has(key)) {
      table.splice(3 * places.size, 3, ...rgb);
      places.set(key, Math.min(places.size, MOST_COLOURS - 1)); // more only in pictures 256 wide
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
  const rows = Math.max(1, Math.floor(MOST_COLOURS / shape.width));
  const parts = [];
  // What was known, and a quick band for each few rows of it.
  for (let top = 0; top < shape.height; top += rows) {
    const bottom = Math.min(shape.height, top + rows);
    parts.push(frame(picture, top, bottom, scale, SHORTEST, (p) => known[p]));
  }
  const delay = Math.max(SHORTEST, Math.round((100 * seconds) / stops.length));
  for (const [k, stop] of stops.entries()) {
    if (!k) continue;
    const final = k === stops.length - 1;
    const top = Math.floor(stops[k - 1] / shape.width);
    const bottom = Math.ceil(stop / shape.width);
    const from = stops[k - 1];
    parts.push(frame(picture, top, bottom, scale, final ? LAST_MS / 10 : delay,
      (p) => p >= from && p < stop && !known[p]));
  }
  return new Blob([
    "GIF89a",
    Uint8Array.of(...two(shape.width * scale), ...two(shape.height * scale), 0, 0, 0,
      0x21, 0xff, 11),
    "NETSCAPE2.0",
    Uint8Array.of(3, 1, 0, 0, 0),
    ...parts.map((part) => Uint8Array.from(part)),
    Uint8Array.of(0x3b),
  ], { type: "image/gif" });
}
