/** A canvas on which a picture appears pixel by pixel, at the pace of whoever watches. */

import { area, blank, checkShape } from "./pixels.js";

export const calm = matchMedia("(prefers-reduced-motion: reduce)");

const CURSOR = [255, 106, 31, 255];
const GHOST = 70; // how solid a pixel is that the model has not seen yet

/** Advances every player that has something to show; one frame serves them all. */
class Clock {
  moving = new Set();
  before = 0;

  wake(player) {
    if (!this.moving.size) {
      this.before = performance.now();
      requestAnimationFrame((now) => this.frame(now));
    }
    this.moving.add(player);
  }

  frame(now) {
    const seconds = Math.min(0.1, Math.max(0, now - this.before) / 1000);
    this.before = now;
    for (const player of [...this.moving]) player.advance(seconds);
    if (this.moving.size) requestAnimationFrame((next) => this.frame(next));
  }
}

const clock = new Clock();

/** Shows the first `position` pixels of a picture of which `available` have arrived. */
export class Player {
  /** @param {HTMLCanvasElement} canvas @param {(position: number) => void} onMove */
  constructor(canvas, onMove = () => {}) {
    this.canvas = canvas;
    this.onMove = onMove;
    this.rate = Infinity; // pixels a second
    this.cursor = true; // mark the pixel to come
    this.ghost = false; // at rest, show what is there beyond it too, faintly
    this.waiting = []; // who waits until it rests
  }

  /** Begin a picture of which nothing but its known pixels is there. */
  begin(shape, given = null) {
    this.picture = given ? { ...given, values: given.values.slice() } : blank(shape);
    this.available = 0;
    this.canvas.width = shape.width;
    this.canvas.height = shape.height;
    this.seek(0);
  }

  /** Show a whole picture. */
  load(picture) {
    this.begin(picture.shape, picture);
    this.available = area(picture.shape);
    this.seek(this.available);
  }

  /** Whether it is going on by itself. */
  get moving() {
    return clock.moving.has(this);
  }

  /** Count the pixels of the picture. */
  get total() {
    return area(this.picture.shape);
  }

  /** Take values that arrived, from the pixel at `position` on; what is shown already may change. */
  write(position, values) {
    const { channels } = this.picture.shape;
    this.picture.values.set(values, position * channels);
    const end = position + values.length / channels;
    this.available = Math.max(this.available, end);
    if (position < this.position) this.paint(position, Math.min(end, this.position));
    this.play();
  }

  /** Take an event of a stream that draws one image. */
  hear({ name, data }) {
    if (name === "started") checkShape(data, this.picture.shape);
    if (name !== "pixels") return;
    for (const { position, values } of data.updates) this.write(position, values);
  }

  /** Show exactly this many pixels. */
  seek(position) {
    this.position = Math.min(position, this.available);
    this.exact = this.position;
    this.draw();
    this.onMove(this.position);
  }

  /** Go on from here to the end of what has arrived. */
  play() {
    const rested = !this.moving;
    clock.wake(this);
    if (rested && this.ghost) this.draw(); // what was faintly seen beyond goes
  }

  /** Stay where it is. */
  stop() {
    clock.moving.delete(this);
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  /** Wait until all that has arrived is shown, or it was stopped. */
  async rested() {
    if (this.moving) await new Promise((resolve) => this.waiting.push(resolve));
  }

  /** Show what these seconds allow; stop when all that arrived is shown. */
  advance(seconds) {
    const known = this.picture.known;
    // Known pixels cost no time: they were there before.
    while (known && this.exact < this.available && known[Math.floor(this.exact)]) this.exact += 1;
    this.exact = Math.min(this.available, this.exact + this.rate * seconds);
    if (this.rate === Infinity) this.exact = this.available;
    const position = Math.floor(this.exact);
    const before = this.position;
    if (position >= this.available) this.stop();
    if (position !== before) {
      this.position = position;
      if (this.ghost && !this.moving) this.draw();
      else this.paint(before, position);
      this.onMove(position);
    }
  }

  /** Paint what is shown, and the pixel to come in the accent colour. */
  draw() {
    const { shape } = this.picture;
    this.image = new ImageData(shape.width, shape.height);
    this.paint(0, this.total);
  }

  /** Paint these pixels anew: a frame touches few of them, and there may be many pictures. */
  paint(from, to) {
    const { image, picture: { known } } = this;
    const ghosts = this.ghost && !this.moving ? this.available : 0;
    for (let p = from; p < to; p += 1) {
      const solid = p < this.position || known?.[p];
      if (solid || p < ghosts) put(image.data, this.picture, p, solid ? 255 : GHOST);
    }
    const next = this.position;
    const awaited = this.cursor && next < this.total && !known?.[next];
    if (awaited && next >= ghosts) image.data.set(CURSOR, 4 * next);
    else if (next < ghosts) image.data[4 * next + 3] = 255; // it is marked, and seen as it is
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }
}

/** Put a pixel of a picture into RGBA. */
function put(data, { shape: { channels }, values }, p, alpha) {
  const [from, to, step] = [p * channels, 4 * p, channels === 3 ? 1 : 0];
  data[to] = values[from];
  data[to + 1] = values[from + step];
  data[to + 2] = values[from + 2 * step];
  data[to + 3] = alpha;
}
