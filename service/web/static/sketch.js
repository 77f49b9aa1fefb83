/** The picture in the editor that is not completed yet, kept for a reload of this tab. */

import { pixelCount } from "./pixels.js";

const STORAGE_KEY = "scanline-sketch";

/** Keeps the picture of an editor while it is enabled. */
export class SketchStore {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.enabled = false;
  }

  /** Keep the picture. */
  save(model) {
    if (!this.enabled) return;
    const { picture: { values, known }, lowestRow, strokeEnd, background, blank } = this.editor;
    const sketch = {
      model: model.id,
      values: [...values],
      known: [...known],
      state: { lowestRow, strokeEnd, background, blank },
    };
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify(sketch));
    } catch { /* storage is full or forbidden: a reload loses the drawing */ }
  }

  /** Return the kept picture of a model and the editor's state, or null. */
  load(model) {
    try {
      const { model: id, values, known, state } = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
      // Another model of this name may have another shape.
      const pixels = pixelCount(model);
      const fits = known.length === pixels && values.length === pixels * model.channels;
      if (id !== model.id || !fits) return null;
      const picture = {
        shape: model, values: Uint8Array.from(values), known: Uint8Array.from(known),
      };
      return { picture, state };
    } catch { // none, or damaged
      return null;
    }
  }

  /** Remove the kept picture, and keep none until enabled again. */
  forget() {
    this.enabled = false;
    try {
      sessionStorage.removeItem(STORAGE_KEY);
    } catch { /* storage is forbidden */ }
  }
}
