/** What lies at hand beside the editor: the tool, its brush and colour, and the rows that are kept. */

import { lightness } from "./examples.js";
import { setRange } from "./fields.js";

const toHex = (rgb) => `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;

/** Has an editor do as the fields of a form say. */
export class EditorTools {
  /**
   * @param {HTMLFormElement} form
   * @param {import("./editor.js").Editor} editor
   */
  constructor(form, editor) {
    this.fields = form.elements;
    this.editor = editor;
    const { brush, rows } = this.fields;
    brush.addEventListener("input", () => this.takeBrush());
    let sliding = false; // one slide is one change, and one undo
    rows.addEventListener("input", () => {
      editor.keepRows(Number(rows.value), sliding);
      sliding = true;
    });
    rows.addEventListener("change", () => { sliding = false; });
    // Safari does not focus what is pressed, and a finger would go on scrolling over the editor.
    const focus = ({ target }) => target.closest("button, input")?.focus({ preventScroll: true });
    form.querySelector(".editor-toolbar").addEventListener("click", focus);
    brush.addEventListener("change", focus);
    form.addEventListener("change", () => this.take());
    this.takeBrush();
    this.take(); // a browser may have kept what was chosen before the page was loaded again
  }

  take() {
    const { tool, colour } = this.fields;
    this.editor.tool = tool.value;
    this.editor.colour = [1, 3, 5].map((at) => parseInt(colour.value.slice(at, at + 2), 16));
  }

  takeBrush() {
    const { brush } = this.fields;
    this.editor.size = Number(brush.value);
    setRange(brush, brush.value, brush.value);
  }

  /** Have a pen at hand that suits an empty sheet of this width. */
  draw(width) {
    const { tool, brush } = this.fields;
    tool.value = "draw";
    setRange(brush, Math.max(1, Math.round(width / 12)), "");
    this.takeBrush();
    this.takePen();
  }

  /** Take a pen that can be seen on the paper. */
  takePen() {
    const pen = lightness(this.editor.paper) < 128 ? 255 : 0;
    this.fields.colour.value = toHex([pen, pen, pen]);
    this.take();
  }

  /** Show how many rows are kept, however that came. */
  showRows(rows) {
    setRange(this.fields.rows, rows, String(rows));
  }
}
