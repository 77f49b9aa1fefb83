/** A ZIP archive of files that would not get smaller, or hardly. */

import { crc32 } from "./png.js";

const DATE = 33; // 1 January 1980, so that the same drawings give the same bytes

/** Write numbers, [bytes wide, value] each, low byte first. */
function little(...fields) {
  const bytes = [];
  for (const [wide, value] of fields) {
    for (let k = 0; k < wide; k += 1) bytes.push((value >>> (8 * k)) & 255);
  }
  return Uint8Array.from(bytes);
}

/** Pack files: [name, blob] each. */
export async function zip(files) {
  const [parts, entries] = [[], []];
  let [at, listed] = [0, 0];
  for (const [name, blob] of files) {
    const title = new TextEncoder().encode(name);
    const bytes = new Uint8Array(await blob.arrayBuffer());
    const facts = [
      [2, 20], [2, 0x800], [2, 0], [2, 0], [2, DATE], [4, crc32(bytes)],
      [4, bytes.length], [4, bytes.length], [2, title.length], [2, 0],
    ];
    parts.push(little([4, 0x04034b50], ...facts), title, bytes);
    entries.push(
      little([4, 0x02014b50], [2, 20], ...facts, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]), title);
    at += 30 + title.length + bytes.length;
    listed += 46 + title.length;
  }
  const count = [2, files.length];
  const end = little([4, 0x06054b50], [2, 0], [2, 0], count, count, [4, listed], [4, at], [2, 0]);
  return new Blob([...parts, ...entries, end], { type: "application/zip" });
}
