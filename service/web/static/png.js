/** Chunks of PNG files. */

export const SIGNATURE = Uint8Array.of(137, 80, 78, 71, 13, 10, 26, 10);
const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

/** Return the CRC-32 checksum that PNG and ZIP use. */
export function crc32(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = CRC_TABLE[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

/** Return a chunk: length, name, data and checksum. */
export function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set([...name].map((c) => c.charCodeAt(0)), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc32(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

/** Pack [byte width, value] pairs in big-endian order. */
function packBigEndian(...fields) {
  const bytes = [];
  for (const [width, value] of fields) {
    for (let k = width - 1; k >= 0; k -= 1) bytes.push((value >>> (8 * k)) & 255);
  }
  return Uint8Array.from(bytes);
}

/** Return the IHDR chunk of an RGBA image, 8 bits per channel. */
export const headerChunk = (width, height) =>
  chunk("IHDR", packBigEndian([4, width], [4, height], [1, 8], [1, 6], [1, 0], [1, 0], [1, 0]));

export const END_CHUNK = chunk("IEND", new Uint8Array());

/** Compress bytes in zlib format, as IDAT requires. */
export async function deflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export const HEADER_END = 33; // length of the signature and IHDR

/** Yield the name and the data of each complete chunk of a PNG file; none of another file. */
export function* readChunks(bytes) {
  if (!SIGNATURE.every((byte, k) => bytes[k] === byte)) return;
  const view = new DataView(bytes.buffer);
  for (let at = SIGNATURE.length; at + 12 <= bytes.length;) {
    const length = view.getUint32(at);
    if (at + 12 + length > bytes.length) return;
    const name = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    yield { name, data: bytes.subarray(at + 8, at + 8 + length) };
    at += 12 + length;
  }
}
