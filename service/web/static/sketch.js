/** The picture in the editor that is not completed yet, kept for a reload of this tab. */

import { decodeFile, fromBase64Url, toBase64Url, toPng } from "./pixels.js";

const STORAGE_KEY = "scanline-sketch";

/**
 * Keep the picture of an editor.
 *
 * @param {string} model id
 * @param {import("./editor.js").Editor} editor
 * @param {boolean} isBlank the visitor began with an empty picture
 */
export async function saveSketch(model, editor, isBlank) {
  const { picture, lowestRow, strokeEnd, background } = editor;
  const image = await toBase64Url(await toPng(picture, (p) => picture.known[p]));
  const sketch = { model, image, isBlank, state: { lowestRow, strokeEnd, background } };
  try {
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify(sketch));
  } catch { /* storage is full or forbidden: a reload loses the drawing */ }
}

/** Return the kept picture of a model, or null. */
export async function loadSketch(model) {
  try {
    const sketch = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
    if (sketch?.model !== model.id) return null;
    return { ...sketch, picture: await decodeFile(fromBase64Url(sketch.image), () => model) };
  } catch { // damaged, or of a model with another shape
    return null;
  }
}

export function forgetSketch() {
  try {
    sessionStorage.removeItem(STORAGE_KEY);
  } catch { /* storage is forbidden */ }
}
