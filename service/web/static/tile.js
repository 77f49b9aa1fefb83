/** One image of a sheet: its canvas, its caption, and what is known of it. */

import { area } from "./pixels.js";
import { Player, calm } from "./player.js";

/** An image being drawn, then finished. */
export class Tile {
  /**
   * @param {number} index its place on the sheet
   * @param {object} part the request that it belongs to: model, fields, link
   * @param {object} job pace and given
   * @param {{moved: (tile: Tile) => void, open: (tile: Tile) => void}} on
   */
  constructor(index, part, { pace, given }, on) {
    Object.assign(this, { index, part, on, result: null, failed: false });
    this.element = document.createElement("li");
    this.button = document.createElement("button");
    this.caption = document.createElement("small");
    const canvas = document.createElement("canvas");
    this.button.type = "button";
    this.button.append(canvas);
    this.element.append(this.button, this.caption);
    this.caption.textContent = "waiting";
    this.player = new Player(canvas, () => this.moved());
    this.player.rate = pace && !calm.matches ? area(part.model) / pace : Infinity;
    this.player.begin(part.model, given);
    this.button.addEventListener("click", () => this.result && on.open(this));
    this.name();
  }

  /** Whether it is finished, and shown to its end. */
  get done() {
    return this.result !== null && this.player.position === this.player.total;
  }

  /** Take pixels; who wants no motion sees them once the image is whole. */
  write(position, values) {
    if (calm.matches) (this.kept ??= []).push([position, values]);
    else this.player.write(position, values);
  }

  /** Take what the server says of the finished image. */
  finish(result) {
    this.result = result;
    this.show();
    this.moved();
  }

  /** Show what was kept back, now that no more will come. */
  show() {
    for (const [position, values] of this.kept?.splice(0) ?? []) this.player.write(position, values);
  }

  /** No more will come. */
  stop() {
    this.player.rate = Infinity;
    this.failed = true;
    this.show();
    if (!this.result) this.caption.textContent = this.player.available ? "unfinished" : "not drawn";
    this.name();
  }

  /** It shows more than before. */
  moved() {
    if (this.done) this.tell();
    else if (!this.failed && this.player.position > 0 && this.caption.textContent !== "drawing") {
      this.caption.textContent = "drawing";
    }
    this.name();
    this.on.moved(this);
  }

  tell() {
    const { seed, label, bits_per_dim: bits, effective_particles: effective } = this.result;
    const lines = [...(label && label !== this.part.title ? [label] : []), `seed ${seed}`];
    if (bits !== null) lines.push(`${bits.toFixed(2)} bits/dim`);
    if (effective) lines.push(`${Math.round(effective)} of ${this.part.fields.particles} tries counted`);
    this.caption.replaceChildren(...lines.flatMap((line, k) =>
      (k ? [document.createElement("br"), line] : [line])));
    if (this.part.title) this.caption.append(this.row());
  }

  /** Name its row, which is seen where the sheet is sorted and the rows are one. */
  row() {
    const line = document.createElement("span");
    line.className = "row-title";
    line.append(document.createElement("br"), this.part.title);
    return line;
  }

  name() {
    const state = this.done ? `seed ${this.result.seed}: enlarge` : this.caption.textContent;
    const name = [`Image ${this.index + 1}`, this.part.title, state].filter(Boolean).join(", ");
    if (this.button.ariaLabel !== name) this.button.ariaLabel = name;
  }
}

/** Show beside the completions what they were given. */
export function givenTile(given) {
  const tile = document.createElement("li");
  const frame = document.createElement("div");
  const canvas = document.createElement("canvas");
  const caption = document.createElement("small");
  tile.className = "given";
  canvas.setAttribute("role", "img");
  canvas.ariaLabel = "What was given";
  frame.append(canvas);
  caption.textContent = "what was given";
  tile.append(frame, caption);
  const player = new Player(canvas);
  player.cursor = false;
  player.begin(given.shape, given);
  return tile;
}

/** Name a row of tiles. */
export function heading(title) {
  const item = document.createElement("li");
  const text = document.createElement("h2");
  item.className = "heading";
  text.textContent = title;
  item.append(text);
  return item;
}
