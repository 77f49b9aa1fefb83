/** Tools of the picture editor: the tool, the brush, its colour, and the number of known rows. */

import { setRange } from "./fields.js";
import { lightness } from "./paper.js";

const toHex = (rgb) => `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;

/** Connects the fields of a form to an editor. */
export class EditorTools {
  /**
   * @param {HTMLFormElement} form
   * @param {import("./editor.js").Editor} editor
   */
  constructor(form, editor) {
    this.fields = form.elements;
    this.editor = editor;
    const { brush, rows } = this.fields;
    brush.addEventListener("input", () => this.applyBrush());
    let sliding = false; // one drag of the slider is one undo step
    rows.addEventListener("input", () => {
      editor.keepRows(Number(rows.value), sliding);
      sliding = true;
    });
    rows.addEventListener("change", () => { sliding = false; });
    form.addEventListener("change", () => this.applyTool());
    this.applyBrush();
    this.applyTool(); // the browser may have restored the fields on reload
  }

  applyTool() {
    const { tool, colour } = this.fields;
    this.editor.tool = tool.value;
    this.editor.colour = [1, 3, 5].map((at) => parseInt(colour.value.slice(at, at + 2), 16));
  }

  applyBrush() {
    const { brush } = this.fields;
    this.editor.brushSize = Number(brush.value);
    setRange(brush, brush.value, brush.value);
  }

  /** Select the pen, with a size that suits an empty picture of this width. */
  selectPen(width) {
    const { tool, brush } = this.fields;
    tool.value = "draw";
    setRange(brush, Math.max(1, Math.round(width / 12)), "");
    this.applyBrush();
    this.selectContrastColour();
  }

  /** Select white or black, whichever contrasts with the background. */
  selectContrastColour() {
    const value = lightness(this.editor.background) < 128 ? 255 : 0;
    this.fields.colour.value = toHex([value, value, value]);
    this.applyTool();
  }

  /** Show the tool "Restore", unless the picture began empty. */
  showRestore(shown) {
    this.fields.tool[2].closest("label").hidden = !shown;
  }

  /** Show the number of known rows. */
  showRows(rows) {
    setRange(this.fields.rows, rows, String(rows));
  }
}
