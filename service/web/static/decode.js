/** Decoding of image files to pictures, with an error that says what the file is. */

import { blankPicture, pixelCount } from "./pixels.js";

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

/** Decode an image file at its own size. */
async function decodeBitmap(file) {
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

/**
 * Decode an image file to a picture: resized, cropped to its centre. Transparent parts are unknown.
 *
 * @param {Blob} file
 * @param {() => import("./pixels.js").Shape} getShape is called after decoding, when another model may be selected
 */
export async function decodeFile(file, getShape) {
  const bitmap = await decodeBitmap(file);
  const shape = getShape();
  const canvas = new OffscreenCanvas(shape.width, shape.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.max(shape.width / bitmap.width, shape.height / bitmap.height);
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = scale !== 1;
  const [left, top] = [(shape.width - width) / 2, (shape.height - height) / 2];
  context.drawImage(downscale(bitmap, width, height), left, top, width, height);
  const { data } = context.getImageData(0, 0, shape.width, shape.height);
  const picture = { ...blankPicture(shape), known: new Uint8Array(pixelCount(shape)).fill(1) };
  // The full-size scan is skipped for opaque images, such as photographs with millions of pixels.
  const opaque = data.every((value, i) => i % 4 !== 3 || value === 255);
  if (!opaque) clearTransparent(picture.known, bitmap, shape, { scale, left, top });
  for (let p = 0; p < pixelCount(shape); p += 1) {
    const [r, g, b] = data.subarray(4 * p, 4 * p + 3);
    if (shape.channels === 1) picture.values[p] = Math.round(0.299 * r + 0.587 * g + 0.114 * b);
    else picture.values.set([r, g, b], 3 * p);
  }
  return picture;
}

/**
 * Shrink an image to at most twice the target size, in steps of one half: Firefox and WebKit skip
 * source pixels if they shrink further in one step.
 */
function downscale(bitmap, width, height) {
  let image = bitmap;
  for (let k = Math.floor(Math.log2(bitmap.width / width)); k > 0; k -= 1) {
    const canvas = new OffscreenCanvas(Math.round(width * 2 ** k), Math.round(height * 2 ** k));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    image = canvas;
  }
  return image;
}

/** Set `known` to 0 for every pixel that overlaps a fully transparent pixel of the bitmap. */
function clearTransparent(known, bitmap, shape, { scale, left, top }) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const pixels = new Uint32Array(data.buffer); // little-endian RGBA: alpha is the highest byte
  const EPSILON = 1e-6; // against rounding errors at the edges
  const range = (at, shift, size) => [
    Math.max(0, Math.floor(at * scale + shift + EPSILON)),
    Math.max(0, Math.min(size, Math.ceil((at + 1) * scale + shift - EPSILON))),
  ];
  const columns = Array.from({ length: bitmap.width }, (_, x) => range(x, left, shape.width));
  const [first, end] = [0, 1].map((side) => Int32Array.from(columns, (column) => column[side]));
  for (let y = 0; y < bitmap.height; y += 1) {
    const [from, to] = range(y, top, shape.height);
    for (let x = 0; x < bitmap.width; x += 1) {
      if (pixels[y * bitmap.width + x] >>> 24) continue;
      for (let row = from; row < to; row += 1) {
        known.fill(0, row * shape.width + first[x], row * shape.width + end[x]);
      }
    }
  }
}
