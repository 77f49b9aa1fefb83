/**
 * An animated PNG of a drawing: each frame is the band of rows that changed since the last. What
 * shows no animation shows the default image, which is the finished one and no frame.
 */

import { area, colour } from "./pixels.js";

const SIGNATURE = Uint8Array.of(137, 80, 78, 71, 13, 10, 26, 10);
const FRAMES = 80;
const SIDE = 280;
const LAST_FRAME_MS = 2000;

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

function crc32(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = CRC[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

/** Frame a chunk: length, name, data, checksum. */
function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set([...name].map((c) => c.charCodeAt(0)), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc32(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

/** Pack numbers, [bytes wide, value] each, high byte first. */
function pack(...fields) {
  const bytes = [];
  for (const [wide, value] of fields) {
    for (let k = wide - 1; k >= 0; k -= 1) bytes.push((value >>> (8 * k)) & 255);
  }
  return Uint8Array.from(bytes);
}

async function deflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Give the rows [top, bottom) as PNG scanlines, RGBA, each pixel `scale` wide and high. */
function band(picture, top, bottom, scale, visible) {
  const { width } = picture.shape;
  const line = 1 + 4 * width * scale;
  const bytes = new Uint8Array(line * (bottom - top) * scale);
  for (let y = top; y < bottom; y += 1) {
    const first = (y - top) * scale * line;
    for (let x = 0; x < width; x += 1) {
      const p = y * width + x;
      const rgba = visible(p) ? [...colour(picture, p), 255] : [0, 0, 0, 0];
      for (let k = 0; k < scale; k += 1) bytes.set(rgba, first + 1 + 4 * (x * scale + k));
    }
    for (let k = 1; k < scale; k += 1) bytes.copyWithin(first + k * line, first, first + line);
  }
  return bytes;
}

/**
 * Encode the drawing of a picture.
 *
 * @param {import("./pixels.js").Picture} picture
 * @param {number} seconds how long it takes, the last look not counted
 */
export async function encodeDrawing(picture, seconds) {
  const { width } = picture.shape;
  const total = area(picture.shape);
  const scale = Math.max(1, Math.floor(SIDE / width));
  const known = picture.known ?? new Uint8Array(total);
  const start = known.includes(0) ? known.indexOf(0) : total;
  const stops = [start];
  for (let k = 1; k <= FRAMES; k += 1) {
    const stop = start + Math.round(((total - start) * k) / FRAMES);
    if (stop > stops.at(-1)) stops.push(stop);
  }
  const size = [[4, width * scale], [4, picture.shape.height * scale]];
  const parts = [
    SIGNATURE,
    chunk("IHDR", pack(...size, [1, 8], [1, 6], [1, 0], [1, 0], [1, 0])),
    chunk("acTL", pack([4, stops.length], [4, 0])),
    chunk("IDAT", await deflate(band(picture, 0, picture.shape.height, scale, () => true))),
  ];
  let sequence = 0;
  for (const [k, stop] of stops.entries()) {
    const top = k ? Math.floor(stops[k - 1] / width) : 0;
    const bottom = k ? Math.ceil(stop / width) : picture.shape.height;
    const final = k === stops.length - 1;
    const delay = final ? LAST_FRAME_MS : Math.max(10, (1000 * seconds) / stops.length);
    parts.push(chunk("fcTL", pack(
      [4, sequence], [4, width * scale], [4, (bottom - top) * scale], [4, 0], [4, top * scale],
      [2, Math.round(delay)], [2, 1000], [1, 0], [1, 0],
    )));
    sequence += 1;
    const data = await deflate(band(picture, top, bottom, scale, (p) => p < stop || known[p]));
    parts.push(chunk("fdAT", Uint8Array.of(...pack([4, sequence]), ...data)));
    sequence += 1;
  }
  parts.push(chunk("IEND", new Uint8Array()));
  return new Blob(parts, { type: "image/png" });
}
