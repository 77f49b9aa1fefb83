/** Decoding of image files in the browser, with an error that says what the file is. */

const WORKING = "PNG, JPEG, WebP, GIF, BMP, AVIF and SVG pictures work.";
const SVG_SIZE = 512; // longest side of a drawn SVG, in pixels
const HEAD_BYTES = 1024;
const HEIF_BRANDS = /^ftyp(heic|heix|heim|heis|hevc|hevx|mif1|msf1)/;

/** Return the beginning of a file as text, one character per byte. */
async function readHead(file) {
  const bytes = new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer());
  return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
}

const isSvg = ({ type }, head) => type === "image/svg+xml" || /<svg[\s>]/i.test(head);

/** Return the error message for a file that the browser cannot decode. */
function describeUnreadable(head) {
  if (HEIF_BRANDS.test(head.slice(4))) {
    return `This browser cannot read HEIC photographs. Save the picture as JPEG. ${WORKING}`;
  }
  if (/^(II\*\0|MM\0\*)/.test(head)) {
    return `This browser cannot read TIFF pictures. Save the picture as PNG. ${WORKING}`;
  }
  if (!/[\0-\x08\x0e-\x1f]/.test(head)) return `That file is text, not a picture. ${WORKING}`;
  return `This browser cannot read that file as a picture. ${WORKING}`;
}

/** Draw an SVG file, which `createImageBitmap` refuses. */
async function decodeSvg(file) {
  const url = URL.createObjectURL(new Blob([file], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const scale = SVG_SIZE / Math.max(image.naturalWidth, image.naturalHeight, 1);
    const [width, height] = [image.naturalWidth || 1, image.naturalHeight || 1]
      .map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").drawImage(image, 0, 0, width, height);
    return canvas.transferToImageBitmap();
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Decode an image file. */
export async function decodeBitmap(file) {
  const head = await readHead(file).catch(() => {
    throw new Error("This browser cannot read that file. Is it a folder?");
  });
  if (!head) throw new Error(`That file is empty. ${WORKING}`);
  if (isSvg(file, head)) {
    return decodeSvg(file).catch(() => {
      throw new Error(`This browser cannot draw that SVG picture. ${WORKING}`);
    });
  }
  return createImageBitmap(file).catch(() => {
    throw new Error(describeUnreadable(head));
  });
}
