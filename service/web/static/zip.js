/** ZIP archives without compression, for files that are compressed already. */

import { crc32 } from "./png.js";

const DATE = 33; // 1 January 1980, so that equal files give equal archives

/** Pack [byte width, value] pairs in little-endian order. */
function packLittleEndian(...fields) {
  const bytes = [];
  for (const [width, value] of fields) {
    for (let k = 0; k < width; k += 1) bytes.push((value >>> (8 * k)) & 255);
  }
  return Uint8Array.from(bytes);
}

/**
 * Create an archive.
 *
 * @param {[string, Blob][]} files name and content
 */
export async function createZip(files) {
  const [parts, directory] = [[], []];
  let [offset, directorySize] = [0, 0];
  for (const [name, blob] of files) {
    const nameBytes = new TextEncoder().encode(name);
    const bytes = new Uint8Array(await blob.arrayBuffer());
    const fields = [
      [2, 20], [2, 0x800], [2, 0], [2, 0], [2, DATE], [4, crc32(bytes)],
      [4, bytes.length], [4, bytes.length], [2, nameBytes.length], [2, 0],
    ];
    parts.push(packLittleEndian([4, 0x04034b50], ...fields), nameBytes, bytes);
    directory.push(packLittleEndian(
      [4, 0x02014b50], [2, 20], ...fields, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), nameBytes);
    offset += 30 + nameBytes.length + bytes.length;
    directorySize += 46 + nameBytes.length;
  }
  const count = [2, files.length];
  const end = packLittleEndian(
    [4, 0x06054b50], [2, 0], [2, 0], count, count, [4, directorySize], [4, offset], [2, 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
