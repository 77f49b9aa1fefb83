/** What PNG files are made of: chunks with checksums. */

export const SIGNATURE = Uint8Array.of(137, 80, 78, 71, 13, 10, 26, 10);
const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

/** Give the checksum of PNG and ZIP. */
export function crc32(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = CRC[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

/** Frame a chunk: length, name, data, checksum. */
export function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set([...name].map((c) => c.charCodeAt(0)), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc32(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

/** Pack numbers, [bytes wide, value] each, high byte first. */
export function pack(...fields) {
  const bytes = [];
  for (const [wide, value] of fields) {
    for (let k = wide - 1; k >= 0; k -= 1) bytes.push((value >>> (8 * k)) & 255);
  }
  return Uint8Array.from(bytes);
}

/** Make the chunk that says how large an image is, of RGBA. */
export const header = (width, height) =>
  chunk("IHDR", pack([4, width], [4, height], [1, 8], [1, 6], [1, 0], [1, 0], [1, 0]));

export const END = chunk("IEND", new Uint8Array());

/** Compress as PNG does. */
export async function deflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const KEYWORD = "Scanline";
const latin = (string) => Uint8Array.from(string, (c) => c.charCodeAt(0));

/** Make the chunk that says how a picture was made: the hash of its link. */
export const text = (made) => chunk("tEXt", latin(`${KEYWORD}\0${made}`));

const HEADER_END = 33; // the signature and IHDR

/** Write into a PNG how it was made. */
export async function stamp(png, made) {
  const bytes = new Uint8Array(await png.arrayBuffer());
  const parts = [bytes.subarray(0, HEADER_END), text(made), bytes.subarray(HEADER_END)];
  return new Blob(parts, { type: "image/png" });
}

/** Read from a file how it was made; null where it does not say. */
export async function readStamp(file) {
  const buffer = await file.arrayBuffer();
  const [bytes, view] = [new Uint8Array(buffer), new DataView(buffer)];
  if (!SIGNATURE.every((byte, k) => bytes[k] === byte)) return null;
  for (let at = SIGNATURE.length; at + 12 <= bytes.length;) {
    const length = view.getUint32(at);
    const data = bytes.subarray(at + 4, at + 8 + length);
    const [start, made] = new TextDecoder("latin1").decode(data).split("\0");
    if (start === `tEXt${KEYWORD}`) return made;
    at += 12 + length;
  }
  return null;
}
