/** The editor: a picture to erase, paint and restore, with the pointer or the keyboard. */

import { area, toImageData } from "./pixels.js";

const UNDO = 30;
const SHADE = 20; // of 255, by which paper in a photograph is darker in one place than another

/** Edits a picture; `known` marks what is not erased. */
export class Editor {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} place hears where the keyboard's cursor is
   * @param {() => void} onChange
   */
  constructor(canvas, place, onChange) {
    this.canvas = canvas;
    this.placeText = place;
    this.onChange = onChange;
    this.tool = "erase";
    this.size = 5;
    this.colour = [255, 255, 255];
    this.paper = [0, 0, 0];
    this.pasts = {}; // of each model
    this.cursor = null;
    this.stroking = null; // the pointer whose stroke it is, while there is one
    this.last = null; // where it is by now
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.release(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { this.cursor = null; this.draw(); });
  }

  /** Put a picture on the editor; Undo brings back what it takes the place of. */
  load(picture) {
    if (this.picture?.known.includes(1)) this.remember();
    this.past = this.pasts[picture.shape.id] ??= [];
    const known = picture.known?.slice() ?? new Uint8Array(area(picture.shape)).fill(1);
    this.picture = { shape: picture.shape, values: picture.values.slice(), known };
    this.original = picture.values.slice();
    this.lowest = null; // the last row that was drawn in,
    this.tip = 0; // and how many rows the end of that stroke takes
    this.paper = [0, 0, 0];
    this.canvas.width = picture.shape.width;
    this.canvas.height = picture.shape.height;
    this.changed();
  }

  /** Know the first rows and nothing else; `again` where that goes on with the last change. */
  keepRows(rows, again = false) {
    if (!again) this.remember();
    const { known, shape } = this.picture;
    known.fill(0).fill(1, 0, rows * shape.width);
    this.changed();
  }

  /** Turn light into dark. */
  invert() {
    this.remember();
    this.picture.values = this.picture.values.map((value) => 255 - value);
    this.original = this.original.map((value) => 255 - value);
    this.changed();
  }

  /**
   * Turn dark strokes on light paper, of this colour, into light ones on black, as far apart as they
   * can be: what is left of the paper is noise to a model that never saw any.
   */
  lift(paper) {
    this.remember();
    const { known, shape: { channels } } = this.picture;
    const black = paper.map((value) => 255 - value + SHADE);
    const white = black.map((value, c) => this.picture.values.reduce((most, dark, k) =>
      (k % channels === c && known[Math.floor(k / channels)] ? Math.max(most, 255 - dark) : most),
    value + 1));
    const turn = (value, k) => {
      const c = k % channels;
      const share = (255 - value - black[c]) / (white[c] - black[c]);
      return Math.round(255 * Math.min(1, Math.max(0, share)));
    };
    this.picture.values = this.picture.values.map(turn);
    this.original = this.original.map(turn);
    this.changed();
  }

  /** Take the last change back. */
  undo() {
    const last = this.past.pop();
    if (!last) return;
    const { values, known, ...rest } = last;
    Object.assign(this.picture, { values, known });
    Object.assign(this, rest);
    this.changed();
  }

  /** Whether something known lies after the first unknown pixel. */
  get scattered() {
    const { known } = this.picture;
    const gap = known.indexOf(0);
    return gap >= 0 && known.includes(1, gap);
  }

  remember() {
    const { picture: { values, known }, original, lowest, tip, paper } = this;
    this.past.push({ values: values.slice(), known: known.slice(), original, lowest, tip, paper });
    if (this.past.length > UNDO) this.past.shift();
  }

  changed() {
    this.draw();
    this.onChange();
  }

  draw() {
    const { known, shape } = this.picture;
    const image = toImageData(this.picture, (p) => known[p]);
    if (this.cursor) {
      const [x, y] = this.cursor.map(Math.floor);
      image.data.set([255, 106, 31, 255], 4 * (y * shape.width + x));
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.picture.shape;
    return [
      ((event.clientX - box.left) / box.width) * width,
      ((event.clientY - box.top) / box.height) * height,
    ];
  }

  press(event) {
    if (event.button !== 0 || !event.isPrimary) return; // one finger paints
    this.canvas.setPointerCapture(event.pointerId);
    this.stroking = event.pointerId;
    this.remember();
    this.last = this.place(event);
    this.stroke(this.last, this.last);
  }

  drag(event) {
    if (event.pointerId !== this.stroking) return;
    const here = this.place(event);
    this.stroke(this.last, here);
    this.last = here;
  }

  /** The stroke is over; it was none if the browser took the finger, to scroll. */
  release(event) {
    if (event.pointerId !== this.stroking) return;
    this.stroking = null;
    if (event.type === "pointercancel") this.undo();
    else this.canvas.focus({ preventScroll: true }); // which a finger that moved does not give it
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const { width, height } = this.picture.shape;
    const [x, y] = this.cursor ?? [width / 2, height / 2];
    if (event.key in step) {
      const [dx, dy] = step[event.key];
      this.cursor = [
        Math.min(width - 0.5, Math.max(0.5, x + dx)),
        Math.min(height - 0.5, Math.max(0.5, y + dy)),
      ];
      this.draw();
      this.tellPlace();
    } else if (event.key === " ") {
      this.cursor = [x, y];
      this.remember();
      this.stroke(this.cursor, this.cursor);
      this.tellPlace();
    } else if (event.key === "z" && (event.ctrlKey || event.metaKey)) {
      this.undo();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Say where the keyboard's cursor is, to those who cannot see it. */
  tellPlace() {
    const { known, shape: { width } } = this.picture;
    const [column, row] = this.cursor.map(Math.floor);
    const state = known[row * width + column] ? "known" : "erased";
    this.placeText.textContent = `Row ${row + 1}, column ${column + 1}, ${state}`;
  }

  /** Apply the tool along a line, between two places in pixels. */
  stroke([x0, y0], [x1, y1]) {
    const steps = Math.ceil(2 * Math.hypot(x1 - x0, y1 - y0)) + 1;
    for (let k = 0; k < steps; k += 1) {
      const t = steps === 1 ? 1 : k / (steps - 1);
      this.dab(x0 + t * (x1 - x0), y0 + t * (y1 - y0));
    }
    this.changed();
  }

  dab(x, y) {
    const { width, height } = this.picture.shape;
    const reach = this.size / 2 + 0.5;
    for (let row = Math.max(0, Math.floor(y - reach)); row < Math.min(height, y + reach); row += 1) {
      for (let col = Math.max(0, Math.floor(x - reach)); col < Math.min(width, x + reach); col += 1) {
        const far = Math.hypot(col + 0.5 - x, row + 0.5 - y);
        const cover = Math.min(1, Math.max(0, reach - far));
        if (cover > 0) this.touch(row * width + col, cover);
      }
    }
  }

  /** Apply the tool to one pixel, of which the brush covers a part. */
  touch(p, cover) {
    const { values, known, shape: { channels, width } } = this.picture;
    if (this.tool === "draw") {
      const row = Math.floor(p / width);
      if (row > (this.lowest ?? -1)) [this.lowest, this.tip] = [row, Math.ceil(this.size / 2)];
      for (let c = 0; c < channels; c += 1) {
        const at = p * channels + c;
        const under = known[p] ? values[at] : this.paper[c];
        const blended = Math.round(under + cover * (this.colour[c] - under));
        values[at] = this.colour[c] > under ? Math.max(under, blended) : Math.min(under, blended);
      }
      known[p] = 1;
    } else if (cover >= 0.5) {
      known[p] = this.tool === "restore" ? 1 : 0;
      if (this.tool === "restore") {
        for (let c = 0; c < channels; c += 1) {
          values[p * channels + c] = this.original[p * channels + c];
        }
      }
    }
  }
}
