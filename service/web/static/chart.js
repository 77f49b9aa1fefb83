/** A chart of 256 probabilities over the values they belong to. */

import { percent } from "./format.js";

const LEFT = 46;
const RIGHT = 8;
const TOP = 10;
const RAMP = 12;
const BOTTOM = RAMP + 24;
const DECADES = 5; // of the logarithmic scale
const TICKS = [0, 128, 255];

/** Hears that charts are to be drawn in another ink. */
export const scheme = matchMedia("(prefers-color-scheme: dark)");

/** Bars for one channel; a press picks a value. */
export class Chart {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {number | null} channel which of red, green and blue; null for brightness
   * @param {(value: number) => void} pick
   */
  constructor(canvas, channel, pick) {
    this.canvas = canvas;
    this.channel = channel;
    this.linear = false;
    this.shown = null;
    this.pointed = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    const held = ({ pointerId, pointerType }) =>
      pointerType !== "touch" && canvas.hasPointerCapture(pointerId); // a finger may only scroll
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && this.shown) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("click", (event) => this.shown && pick(this.valueAt(event)));
    canvas.addEventListener("pointermove", (event) => {
      this.pointed = this.valueAt(event);
      if (held(event)) pick(this.pointed);
      else this.draw();
    });
    canvas.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
  }

  /** Show a distribution, the value that came, and the one chosen instead; null for none. */
  show(probabilities, actual, chosen) {
    this.shown = { probabilities, actual, chosen };
    this.draw();
  }

  /** Show nothing. */
  clear() {
    this.shown = null;
    this.canvas.width = this.canvas.clientWidth;
  }

  valueAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return Math.min(255, Math.max(0, Math.floor(256 * share)));
  }

  draw() {
    const { canvas } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!this.shown || !width) return;
    [canvas.width, canvas.height] = [width, height].map((n) => Math.round(n * devicePixelRatio));
    const context = canvas.getContext("2d");
    context.scale(canvas.width / width, canvas.height / height);
    context.font = "11px system-ui, sans-serif";
    const style = getComputedStyle(canvas);
    const ink = (name) => style.getPropertyValue(name);
    const { probabilities, actual, chosen } = this.shown;
    const most = Math.max(...probabilities);
    const tall = height - TOP - BOTTOM;
    const share = (p) => (this.linear ? p / most : 1 + Math.log10(Math.max(p, 1e-9)) / DECADES);
    const y = (p) => TOP + tall * (1 - Math.max(0, share(p)));
    const bar = (width - LEFT - RIGHT) / 256;
    const x = (value) => LEFT + value * bar;

    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const p of this.linear ? [most, most / 2] : [1, 0.1, 0.01, 0.001, 0.0001]) {
      context.fillStyle = ink("--line");
      context.fillRect(LEFT, y(p), width - LEFT - RIGHT, 1);
      context.fillStyle = ink("--muted");
      const text = this.linear ? percent(p) : `${Number((100 * p).toPrecision(1))} %`;
      context.fillText(text, LEFT - 5, y(p));
    }
    context.fillStyle = ink("--ink");
    probabilities.forEach((p, value) => {
      context.fillRect(x(value), y(p), bar + 0.3, TOP + tall - y(p));
    });
    const ramp = context.createLinearGradient(LEFT, 0, width - RIGHT, 0);
    ramp.addColorStop(0, "rgb(0 0 0)");
    ramp.addColorStop(1, `rgb(${[0, 1, 2].map((c) => ((this.channel ?? c) === c ? 255 : 0)).join(" ")})`);
    context.fillStyle = ramp;
    context.fillRect(LEFT, TOP + tall + 4, width - LEFT - RIGHT, RAMP);
    const mark = (value, colour) => {
      const wide = Math.max(bar, 4);
      const left = Math.min(x(value), width - RIGHT - wide);
      context.fillStyle = colour;
      context.fillRect(left, y(probabilities[value]), wide, TOP + tall + 4 - y(probabilities[value]));
      context.fillRect(left - 1, TOP + tall, wide + 2, 4);
    };
    if (chosen !== null && chosen !== actual) mark(chosen, ink("--chosen"));
    if (actual !== null) mark(actual, ink("--cursor"));
    context.fillStyle = ink("--muted");
    context.textBaseline = "alphabetic";
    TICKS.forEach((value, k) => {
      context.textAlign = ["left", "center", "right"][k];
      context.fillText(String(value), k === 2 ? width - RIGHT : x(value), height - 5);
    });
    if (this.pointed !== null) this.tell(context, width, ink);
  }

  /** Say the value under the pointer. */
  tell(context, width, ink) {
    const text = `${this.pointed}: ${percent(this.shown.probabilities[this.pointed])}`;
    context.textAlign = "right";
    context.font = "600 12px system-ui, sans-serif";
    const wide = context.measureText(text).width;
    context.fillStyle = ink("--card");
    context.fillRect(width - RIGHT - wide - 8, TOP, wide + 8, 18);
    context.fillStyle = ink("--ink");
    context.fillText(text, width - RIGHT - 4, TOP + 13);
  }
}
