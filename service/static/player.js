/** A canvas on which a picture appears pixel by pixel, at the pace of whoever watches. */

import { area, blank, colour } from "./pixels.js";

export const calm = matchMedia("(prefers-reduced-motion: reduce)");

const moving = new Set();
let before = 0;

/** Advance every player that has something to show; one frame serves them all. */
function frame(now) {
  const seconds = Math.min(0.1, Math.max(0, now - before) / 1000);
  before = now;
  for (const player of [...moving]) player.advance(seconds);
  if (moving.size) requestAnimationFrame(frame);
}

function wake(player) {
  if (!moving.size) {
    before = performance.now();
    requestAnimationFrame(frame);
  }
  moving.add(player);
}

/** Shows the first `position` pixels of a picture of which `available` have arrived. */
export class Player {
  /** @param {HTMLCanvasElement} canvas @param {(position: number) => void} onMove */
  constructor(canvas, onMove = () => {}) {
    this.canvas = canvas;
    this.onMove = onMove;
    this.rate = Infinity; // pixels a second
    this.cursor = true; // mark the pixel to come
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
    return moving.has(this);
  }

  /** Count the pixels of the picture. */
  get total() {
    return area(this.picture.shape);
  }

  /** Take values that arrived, from the pixel at `position` on. */
  write(position, values) {
    const { channels } = this.picture.shape;
    this.picture.values.set(values, position * channels);
    this.available = Math.max(this.available, position + values.length / channels);
    wake(this);
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
    wake(this);
  }

  /** Stay where it is. */
  stop() {
    moving.delete(this);
  }

  /** Show what these seconds allow; stop when all that arrived is shown. */
  advance(seconds) {
    const known = this.picture.known;
    // Known pixels cost no time: they were there before.
    while (known && this.exact < this.available && known[Math.floor(this.exact)]) this.exact += 1;
    this.exact = Math.min(this.available, this.exact + this.rate * seconds);
    if (this.rate === Infinity) this.exact = this.available;
    const position = Math.floor(this.exact);
    if (position !== this.position) {
      this.position = position;
      this.draw();
      this.onMove(position);
    }
    if (this.position >= this.available) moving.delete(this);
  }

  /** Paint what is shown, and the pixel to come in the accent colour. */
  draw() {
    const { shape, known } = this.picture;
    const context = this.canvas.getContext("2d");
    const image = new ImageData(shape.width, shape.height);
    for (let p = 0; p < this.total; p += 1) {
      if (p < this.position || known?.[p]) image.data.set([...colour(this.picture, p), 255], 4 * p);
    }
    if (this.cursor && this.position < this.total) image.data.set([255, 106, 31, 255], 4 * this.position);
    context.putImageData(image, 0, 0);
  }
}
