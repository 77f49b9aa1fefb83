/** The picture in the editor that is not completed yet, kept for a reload of this tab. */

import { decodeFile } from "./decode.js";
import { fromBase64Url, toBase64Url, toPng } from "./pixels.js";

const STORAGE_KEY = "scanline-sketch";
const SAVE_MS = 300; // after the last stroke

/** Keeps the picture of an editor while it is enabled. */
export class SketchStore {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.enabled = false;
  }

  /** Keep the picture once the visitor pauses. */
  save(model) {
    clearTimeout(this.timer);
    if (this.enabled) this.timer = setTimeout(() => this.saveNow(model), SAVE_MS);
  }

  async saveNow(model) {
    const { timer, editor: { picture, lowestRow, strokeEnd, background, blank } } = this;
    const image = await toBase64Url(await toPng(picture, (p) => picture.known[p]));
    if (!this.enabled || this.timer !== timer) return; // forgotten or changed meanwhile
    const state = { lowestRow, strokeEnd, background, blank };
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ model: model.id, image, state }));
    } catch { /* storage is full or forbidden: a reload loses the drawing */ }
  }

  /** Return the kept picture of a model, or null. */
  async load(model) {
    try {
      const sketch = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
      if (sketch?.model !== model.id) return null;
      return { ...sketch, picture: await decodeFile(fromBase64Url(sketch.image), () => model) };
    } catch { // damaged, or of a model with another shape
      return null;
    }
  }

  /** Remove the kept picture, and keep none until enabled again. */
  forget() {
    this.enabled = false;
    clearTimeout(this.timer);
    try {
      sessionStorage.removeItem(STORAGE_KEY);
    } catch { /* storage is forbidden */ }
  }
}
