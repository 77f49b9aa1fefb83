/** A canvas on which a picture appears pixel by pixel, at a chosen rate. */

import { blankPicture, checkShape, pixelCount } from "./pixels.js";

export const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

const CURSOR = [255, 106, 31, 255];
const GHOST = 70; // alpha of the pixels beyond the current position

/** Advances all playing players in one animation frame callback. */
class AnimationClock {
  players = new Set();
  lastFrame = 0;

  add(player) {
    if (!this.players.size) {
      this.lastFrame = performance.now();
      requestAnimationFrame((now) => this.onFrame(now));
    }
    this.players.add(player);
  }

  onFrame(now) {
    const seconds = Math.min(0.1, Math.max(0, now - this.lastFrame) / 1000);
    this.lastFrame = now;
    for (const player of [...this.players]) player.advance(seconds);
    if (this.players.size) requestAnimationFrame((next) => this.onFrame(next));
  }
}

const clock = new AnimationClock();

/** Shows the first `position` pixels of a picture whose first `available` pixels have arrived. */
export class Player {
  /** @param {HTMLCanvasElement} canvas @param {(position: number) => void} onMove */
  constructor(canvas, onMove = () => {}) {
    this.canvas = canvas;
    this.onMove = onMove;
    this.rate = Infinity; // pixels per second
    this.cursor = true; // mark the next pixel
    this.ghost = false; // when paused, also show the available pixels beyond the position, faintly
    this.pauseListeners = [];
  }

  /** Start a picture: empty, or with the known pixels of `given`. */
  reset(shape, given = null) {
    this.picture = given ? { ...given, values: given.values.slice() } : blankPicture(shape);
    this.available = 0;
    this.canvas.width = shape.width;
    this.canvas.height = shape.height;
    this.seek(0);
  }

  /** Show a complete picture. */
  load(picture) {
    this.reset(picture.shape, picture);
    this.available = pixelCount(picture.shape);
    this.seek(this.available);
  }

  get playing() {
    return clock.players.has(this);
  }

  /** The number of pixels of the picture. */
  get total() {
    return pixelCount(this.picture.shape);
  }

  /** Store received values from pixel `position` on. They may replace pixels already shown. */
  write(position, values) {
    const { channels } = this.picture.shape;
    this.picture.values.set(values, position * channels);
    const end = position + values.length / channels;
    this.available = Math.max(this.available, end);
    if (position < this.position) this.renderRange(position, Math.min(end, this.position));
    this.play();
  }

  /** Handle an event of a stream that draws one image. */
  handleEvent({ name, data }) {
    if (name === "started") checkShape(data, this.picture.shape);
    if (name !== "pixels") return;
    for (const { position, values } of data.updates) this.write(position, values);
  }

  /** Show exactly `position` pixels. */
  seek(position) {
    this.position = Math.min(position, this.available);
    this.exactPosition = this.position; // with the fraction of a pixel
    this.render();
    this.onMove(this.position);
  }

  /** Play from the current position to the last available pixel. */
  play() {
    const paused = !this.playing;
    clock.add(this);
    if (paused && this.ghost) this.render(); // hides the pixels beyond the position
  }

  /** Pause at the current position. */
  stop() {
    clock.players.delete(this);
    for (const resolve of this.pauseListeners.splice(0)) resolve();
  }

  /** Wait until all available pixels are shown, or the player is stopped. */
  async paused() {
    if (this.playing) await new Promise((resolve) => this.pauseListeners.push(resolve));
  }

  /** Move on by this time; stop after the last available pixel. */
  advance(seconds) {
    const known = this.picture.known;
    // Known pixels take no time, because they are shown from the start.
    while (known && this.exactPosition < this.available && known[Math.floor(this.exactPosition)]) {
      this.exactPosition += 1;
    }
    this.exactPosition = Math.min(this.available, this.exactPosition + this.rate * seconds);
    if (this.rate === Infinity) this.exactPosition = this.available;
    const position = Math.floor(this.exactPosition);
    const before = this.position;
    if (position >= this.available) this.stop();
    if (position !== before) {
      this.position = position;
      if (this.ghost && !this.playing) this.render();
      else this.renderRange(before, position);
      this.onMove(position);
    }
  }

  /** Render the shown pixels, and the next one in the accent colour. */
  render() {
    const { shape } = this.picture;
    this.image = new ImageData(shape.width, shape.height);
    this.renderRange(0, this.total);
  }

  /** Render the pixels [from, to) only: a frame changes few pixels, and many players may run. */
  renderRange(from, to) {
    const { image, picture: { known } } = this;
    const ghostEnd = this.ghost && !this.playing ? this.available : 0;
    for (let p = from; p < to; p += 1) {
      const solid = p < this.position || known?.[p];
      if (solid || p < ghostEnd) setPixel(image.data, this.picture, p, solid ? 255 : GHOST);
    }
    const next = this.position;
    const pending = this.cursor && next < this.total && !known?.[next];
    if (pending && next >= ghostEnd) image.data.set(CURSOR, 4 * next);
    else if (next < ghostEnd) image.data[4 * next + 3] = 255; // the marked pixel is opaque
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }
}

/** Copy pixel `p` of a picture into RGBA data. */
function setPixel(data, { shape: { channels }, values }, p, alpha) {
  const [from, to, step] = [p * channels, 4 * p, channels === 3 ? 1 : 0];
  data[to] = values[from];
  data[to + 1] = values[from + step];
  data[to + 2] = values[from + 2 * step];
  data[to + 3] = alpha;
}
