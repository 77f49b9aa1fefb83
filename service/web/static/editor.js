/** Picture editor: erase, paint and restore pixels with the pointer or the keyboard. */

import { pixelCount, toImageData } from "./pixels.js";

const UNDO_STEPS = 30;
const PAPER_NOISE = 20; // brightness variation of photographed paper, of 255
const CURSOR = [255, 106, 31, 255];

/** Edits the values and the `known` mask of a picture. Erased pixels are unknown. */
export class Editor {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} positionLine announces the keyboard cursor to screen readers
   * @param {() => void} onChange
   */
  constructor(canvas, positionLine, onChange) {
    this.canvas = canvas;
    this.positionLine = positionLine;
    this.onChange = onChange;
    this.tool = "erase";
    this.brushSize = 5;
    this.colour = [255, 255, 255];
    this.background = [0, 0, 0];
    this.blank = false; // began empty: a dotted line across it, until the first stroke
    this.undoStacks = {}; // by model
    this.cursor = null; // of the keyboard
    this.spaceHeld = false; // the arrow keys paint
    this.activePointer = null;
    this.lastPoint = null; // of the active pointer
    canvas.addEventListener("pointerdown", (event) => this.onPointerDown(event));
    canvas.addEventListener("pointermove", (event) => this.onPointerMove(event));
    for (const type of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(type, (event) => this.onPointerEnd(event));
    }
    canvas.addEventListener("keydown", (event) => this.onKeyDown(event));
    canvas.addEventListener("keyup", ({ key }) => { if (key === " ") this.spaceHeld = false; });
    canvas.addEventListener("blur", () => {
      Object.assign(this, { cursor: null, spaceHeld: false });
      this.render();
    });
  }

  /** Load a picture. Undo brings the old one back. */
  load(picture) {
    if (this.picture?.known.includes(1)) this.saveUndo();
    this.undoStack = this.undoStacks[picture.shape.id] ??= [];
    const known = picture.known?.slice() ?? new Uint8Array(pixelCount(picture.shape)).fill(1);
    this.picture = { shape: picture.shape, values: picture.values.slice(), known };
    this.original = picture.values.slice();
    this.lowestRow = null; // the lowest row that the pen has touched
    this.strokeEnd = 0; // rows that the rounded end of that stroke covers
    this.background = [0, 0, 0];
    this.blank = false;
    this.canvas.width = picture.shape.width;
    this.canvas.height = picture.shape.height;
    this.update();
  }

  /** Give an empty picture another background. */
  fill(background) {
    const { values, shape: { channels } } = this.picture;
    values.forEach((_, at) => { values[at] = background[at % channels]; });
    Object.assign(this, { original: values.slice(), background });
    this.update();
  }

  /** Mark the first rows as known and all others as unknown; `merge` adds no undo step. */
  keepRows(rows, merge = false) {
    if (!merge) this.saveUndo();
    const { known, shape } = this.picture;
    known.fill(0).fill(1, 0, rows * shape.width);
    this.update();
  }

  /** Invert all values. */
  invert() {
    this.saveUndo();
    this.picture.values = this.picture.values.map((value) => 255 - value);
    this.original = this.original.map((value) => 255 - value);
    this.update();
  }

  /**
   * Turn dark strokes on light paper into light strokes on black, with full contrast. Paper texture
   * becomes exactly black, because the model has never seen such noise.
   *
   * @param {number[]} paper colour of the paper
   */
  invertPaper(paper) {
    this.saveUndo();
    const { known, shape: { channels } } = this.picture;
    const black = paper.map((value) => 255 - value + PAPER_NOISE);
    const white = black.map((value, c) => this.picture.values.reduce((max, dark, k) =>
      (k % channels === c && known[Math.floor(k / channels)] ? Math.max(max, 255 - dark) : max),
    value + 1));
    const convert = (value, k) => {
      const c = k % channels;
      const share = (255 - value - black[c]) / (white[c] - black[c]);
      return Math.round(255 * Math.min(1, Math.max(0, share)));
    };
    this.picture.values = this.picture.values.map(convert);
    this.original = this.original.map(convert);
    this.update();
  }

  /** Undo the last change. */
  undo() {
    const state = this.undoStack.pop();
    if (!state) return;
    const { values, known, ...rest } = state;
    Object.assign(this.picture, { values, known });
    Object.assign(this, rest);
    this.update();
  }

  /** Return true if known pixels follow the first unknown one. */
  get knownAfterGap() {
    const { known } = this.picture;
    const gap = known.indexOf(0);
    return gap >= 0 && known.includes(1, gap);
  }

  saveUndo() {
    const { picture: { values, known }, original, lowestRow, strokeEnd, background, blank } = this;
    this.undoStack.push({
      values: values.slice(), known: known.slice(), original, lowestRow, strokeEnd, background, blank,
    });
    if (this.undoStack.length > UNDO_STEPS) this.undoStack.shift();
  }

  update() {
    this.render();
    this.onChange();
  }

  render() {
    const { known, shape } = this.picture;
    const image = toImageData(this.picture, (p) => known[p]);
    const { parentElement: frame } = this.canvas;
    frame.style.setProperty("--ratio", shape.height / shape.width);
    frame.classList.toggle("guided", this.blank && this.lowestRow === null);
    if (this.cursor) {
      const [x, y] = this.cursor.map(Math.floor);
      image.data.set(CURSOR, 4 * (y * shape.width + x));
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Return the position of an event in picture pixels. */
  pointOf(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.picture.shape;
    return [
      ((event.clientX - box.left) / box.width) * width,
      ((event.clientY - box.top) / box.height) * height,
    ];
  }

  onPointerDown(event) {
    if (event.button !== 0 || !event.isPrimary) return; // only the first finger paints
    this.canvas.setPointerCapture(event.pointerId);
    this.activePointer = event.pointerId;
    this.saveUndo();
    this.lastPoint = this.pointOf(event);
    this.paintLine(this.lastPoint, this.lastPoint);
  }

  onPointerMove(event) {
    if (event.pointerId !== this.activePointer) return;
    const point = this.pointOf(event);
    this.paintLine(this.lastPoint, point);
    this.lastPoint = point;
  }

  /** End the stroke; undo it if the browser cancelled it in order to scroll. */
  onPointerEnd(event) {
    if (event.pointerId !== this.activePointer) return;
    this.activePointer = null;
    if (event.type === "pointercancel") this.undo();
    else this.canvas.focus({ preventScroll: true }); // a drag with a finger does not focus it
  }

  onKeyDown(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const { width, height } = this.picture.shape;
    const [x, y] = this.cursor ?? [width, height].map((size) => Math.floor(size / 2) + 0.5);
    const modified = event.altKey || event.ctrlKey || event.metaKey; // as Alt+Left, which goes back
    if (event.key in steps && !modified) {
      const [dx, dy] = steps[event.key];
      this.cursor = [
        Math.min(width - 0.5, Math.max(0.5, x + dx)),
        Math.min(height - 0.5, Math.max(0.5, y + dy)),
      ];
      if (this.spaceHeld) this.paintLine([x, y], this.cursor);
      else this.render();
      this.announceCursor();
    } else if (event.key === " " && !this.spaceHeld) {
      this.spaceHeld = true;
      this.cursor = [x, y];
      this.saveUndo();
      this.paintLine(this.cursor, this.cursor);
      this.announceCursor();
    } else if (event.key === "z" && (event.ctrlKey || event.metaKey)) {
      this.undo();
    } else if (event.key !== " ") { // repeated while it is held
      return;
    }
    event.preventDefault();
  }

  /** Announce the position of the keyboard cursor to screen readers. */
  announceCursor() {
    const { known, shape: { width } } = this.picture;
    const [column, row] = this.cursor.map(Math.floor);
    const state = known[row * width + column] ? "known" : "erased";
    this.positionLine.textContent = `Row ${row + 1}, column ${column + 1}, ${state}`;
  }

  /** Apply the tool along a line between two points. */
  paintLine([x0, y0], [x1, y1]) {
    const steps = Math.ceil(2 * Math.hypot(x1 - x0, y1 - y0)) + 1;
    for (let k = 0; k < steps; k += 1) {
      const t = steps === 1 ? 1 : k / (steps - 1);
      this.stampBrush(x0 + t * (x1 - x0), y0 + t * (y1 - y0));
    }
    this.update();
  }

  stampBrush(x, y) {
    const { width, height } = this.picture.shape;
    const reach = this.brushSize / 2 + 0.5;
    for (let row = Math.max(0, Math.floor(y - reach)); row < Math.min(height, y + reach); row += 1) {
      for (let col = Math.max(0, Math.floor(x - reach)); col < Math.min(width, x + reach); col += 1) {
        const distance = Math.hypot(col + 0.5 - x, row + 0.5 - y);
        const coverage = Math.min(1, Math.max(0, reach - distance));
        if (coverage > 0) this.applyTool(row * width + col, coverage);
      }
    }
  }

  /** Apply the tool to pixel `p`; `coverage`, from 0 to 1, is the part that the brush covers. */
  applyTool(p, coverage) {
    const { values, known, shape: { channels, width } } = this.picture;
    if (this.tool === "draw") {
      const row = Math.floor(p / width);
      if (row > (this.lowestRow ?? -1)) {
        [this.lowestRow, this.strokeEnd] = [row, Math.ceil(this.brushSize / 2)];
      }
      for (let c = 0; c < channels; c += 1) {
        const at = p * channels + c;
        const under = known[p] ? values[at] : this.background[c];
        const blended = Math.round(under + coverage * (this.colour[c] - under));
        values[at] = this.colour[c] > under ? Math.max(under, blended) : Math.min(under, blended);
      }
      known[p] = 1;
    } else if (coverage >= 0.5) {
      known[p] = this.tool === "restore" ? 1 : 0;
      if (this.tool === "restore") {
        for (let c = 0; c < channels; c += 1) {
          values[p * channels + c] = this.original[p * channels + c];
        }
      }
    }
  }
}
