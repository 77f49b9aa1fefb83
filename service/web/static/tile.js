/** One image of an image grid: its canvas, caption and result. */

import { drawnAs } from "./format.js";
import { pixelCount } from "./pixels.js";
import { Player, reducedMotion } from "./player.js";

/** Return the pixels per second of an animation; 0 seconds is full speed. */
export const paceToRate = (shape, secondsPerImage) => (secondsPerImage && !reducedMotion.matches
  ? pixelCount(shape) / secondsPerImage : Infinity);

/** An image that is being drawn, or is finished. */
export class Tile {
  /**
   * @param {number} index in the grid
   * @param {object} request that the image belongs to: title, model, fields, link
   * @param {object} job `secondsPerImage` and `input`, see ImageGrid
   * @param {{onMove: (tile: Tile) => void, onOpen: (tile: Tile) => void}} handlers
   */
  constructor(index, request, { secondsPerImage, input }, handlers) {
    Object.assign(this, { index, request, handlers, result: null, failed: false });
    this.element = document.createElement("li");
    this.button = document.createElement("button");
    this.caption = document.createElement("small");
    const canvas = document.createElement("canvas");
    this.button.type = "button";
    this.button.append(canvas);
    this.element.append(this.button, this.caption);
    this.caption.textContent = "waiting";
    this.player = new Player(canvas, () => this.onMove());
    this.player.rate = paceToRate(request.model, secondsPerImage);
    this.player.reset(request.model, input);
    this.button.addEventListener("click", () => this.result && handlers.onOpen(this));
    this.updateLabel();
  }

  /** True if the image is finished and all its pixels are shown. */
  get done() {
    return this.result !== null && this.player.position === this.player.total;
  }

  /** Store received pixels. With reduced motion they are shown once the image is finished. */
  write(position, values) {
    if (reducedMotion.matches) (this.buffered ??= []).push([position, values]);
    else this.player.write(position, values);
  }

  /** Store the server's result of the finished image. */
  finish(result) {
    this.result = result;
    this.flush();
    this.onMove();
  }

  /** Show the buffered pixels. */
  flush() {
    for (const [position, values] of this.buffered?.splice(0) ?? []) {
      this.player.write(position, values);
    }
  }

  /** Show the received pixels at once, because the drawing failed or was cancelled. */
  stop() {
    this.player.rate = Infinity;
    this.failed = true;
    this.flush();
    if (!this.result) this.caption.textContent = this.player.available ? "unfinished" : "not drawn";
    this.updateLabel();
  }

  onMove() {
    if (this.done) this.showResult();
    else if (!this.failed && this.player.position > 0 && this.caption.textContent !== "drawing") {
      this.caption.textContent = "drawing";
    }
    this.updateLabel();
    this.handlers.onMove(this);
  }

  showResult() {
    const { seed, label, bits_per_dim: bits, effective_particles: effective } = this.result;
    const { title, fields } = this.request;
    const details = [`seed ${seed}`];
    if (bits !== null) details.push(`${bits.toFixed(2)} bits per value`);
    if (effective) details.push(`${Math.round(effective)} of ${fields.particles} tries counted`);
    this.caption.replaceChildren(
      createLine("drawn-as", label && label !== title ? drawnAs(label) : ""),
      ...details.map((line) => createLine("detail", line)));
    if (title) this.caption.append(createLine("row-title", title));
  }

  updateLabel() {
    const { title } = this.request;
    const drawn = this.done && this.result.label !== title && this.result.label;
    const facts = [`Image ${this.index + 1}`, title, drawn && drawnAs(drawn),
      !this.done && this.caption.textContent];
    const label = `${facts.filter(Boolean).join(", ")}${this.done ? ": enlarge" : ""}`;
    if (this.button.ariaLabel !== label) this.button.ariaLabel = label;
  }
}

/**
 * Create a line of a caption. The style sheet shows lines of the class "detail" on request, and the
 * row's title while the grid is sorted and has no rows.
 */
function createLine(className, text) {
  const line = document.createElement("span");
  line.className = className;
  line.textContent = text;
  return line;
}

/** Create the tile that shows the input of completions. */
export function createInputTile(input) {
  const tile = document.createElement("li");
  const frame = document.createElement("div");
  const canvas = document.createElement("canvas");
  const caption = document.createElement("small");
  tile.className = "input";
  canvas.setAttribute("role", "img");
  canvas.ariaLabel = "Your input";
  frame.append(canvas);
  caption.textContent = "your input";
  tile.append(frame, caption);
  const player = new Player(canvas);
  player.cursor = false;
  player.reset(input.shape, input);
  return tile;
}

/** Create the heading of a row of tiles. */
export function createHeading(title) {
  const item = document.createElement("li");
  const text = document.createElement("h2");
  item.className = "heading";
  text.textContent = title;
  item.append(text);
  return item;
}
