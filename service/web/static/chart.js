/** Bar chart of the 256 probabilities of one channel value. */

import { formatPercent } from "./format.js";

const LEFT = 46;
const RIGHT = 8;
const TOP = 10;
const RAMP = 12; // height of the colour ramp below the bars
const BOTTOM = RAMP + 24;
const DECADES = 5; // of the logarithmic scale
const MARK_HEIGHT = 6; // of a marked bar, at least
const TICKS = [0, 128, 255];

/** Changes when charts have to be drawn in the colours of the other scheme. */
export const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/**
 * Let radio buttons choose between linear and logarithmic bars.
 *
 * @param {HTMLElement} fieldset @param {string} name of the buttons @param {string} initial value
 * @param {() => void} onChange
 * @returns {{linear: boolean}} which changes with the buttons
 */
export function connectScale(fieldset, name, initial, onChange) {
  const scale = { linear: initial === "linear" };
  for (const input of fieldset.querySelectorAll("input")) {
    input.name = name;
    input.checked = input.value === initial;
    input.addEventListener("change", () => {
      scale.linear = input.value === "linear";
      onChange();
    });
  }
  return scale;
}

/**
 * Chart of one channel. A click picks a value, and so do the arrow keys with Enter; with `drag`, also
 * a drag.
 */
export class Chart {
  /**
   * @param {string} name of the channel
   * @param {number | null} channel 0, 1 or 2 for red, green or blue; null for brightness
   * @param {(value: number) => void} onPick
   * @param {{drag?: boolean}} options
   */
  constructor(name, channel, onPick, { drag = false } = {}) {
    const canvas = document.createElement("canvas");
    canvas.ariaLabel = `${name}: probability of each of 256 values. Enter chooses one.`;
    this.canvas = canvas;
    this.channel = channel;
    this.linear = false;
    this.content = null;
    this.hovered = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    const dragged = ({ pointerId, pointerType }) => // a finger may be scrolling
      drag && pointerType !== "touch" && canvas.hasPointerCapture(pointerId);
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && this.content) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("click", (event) => this.content && onPick(this.valueAt(event)));
    canvas.addEventListener("pointermove", (event) => {
      this.hovered = this.valueAt(event);
      if (dragged(event)) onPick(this.hovered);
      else this.draw();
    });
    canvas.addEventListener("pointerleave", () => { this.hovered = null; this.draw(); });
    canvas.addEventListener("blur", () => { this.hovered = null; this.draw(); });
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "slider");
    Object.assign(canvas, { ariaValueMin: "0", ariaValueMax: "255", ariaValueNow: "0" });
    canvas.addEventListener("focus", () => this.content && this.describeValue());
    canvas.addEventListener("keydown", (event) => this.onKey(event, onPick));
  }

  /** Move to another value with the arrow keys, to one 16 away with Page Up and Down; pick it with Enter. */
  onKey(event, onPick) {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -16, PageUp: 16 }[event.key];
    if (!this.content || (!step && event.key !== "Enter")) return;
    if (event.altKey || event.ctrlKey || event.metaKey) return; // as Alt+Left, which goes back
    event.preventDefault();
    if (!step) {
      onPick(this.value);
      return;
    }
    this.hovered = Math.min(255, Math.max(0, this.value + step));
    this.describeValue();
    this.draw();
  }

  /** The value that the pointer or the arrow keys selected, or the likeliest one. */
  get value() {
    const { probabilities } = this.content;
    return this.hovered ?? probabilities.indexOf(Math.max(...probabilities));
  }

  /** Describe the value to screen readers. */
  describeValue() {
    const { canvas, value, content: { probabilities } } = this;
    canvas.ariaValueNow = value;
    canvas.ariaValueText = `${value}: ${formatPercent(probabilities[value])}`;
  }

  /**
   * Show a distribution.
   *
   * @param {number[]} probabilities of the values 0 to 255
   * @param {number | null} actual the value of the picture
   * @param {number | null} chosen the value that the visitor chose
   */
  show(probabilities, actual, chosen) {
    this.content = { probabilities, actual, chosen };
    this.describeValue();
    this.draw();
  }

  /** Show an empty chart. */
  clear() {
    this.content = null;
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
    if (!this.content || !width) return;
    [canvas.width, canvas.height] = [width, height].map((n) => Math.round(n * devicePixelRatio));
    const context = canvas.getContext("2d");
    context.scale(canvas.width / width, canvas.height / height);
    context.font = "11px system-ui, sans-serif";
    const style = getComputedStyle(canvas);
    const cssColour = (name) => style.getPropertyValue(name);
    const { probabilities, actual, chosen } = this.content;
    const max = Math.max(...probabilities);
    const plotHeight = height - TOP - BOTTOM;
    const share = (p) => (this.linear ? p / max : 1 + Math.log10(Math.max(p, 1e-9)) / DECADES);
    const y = (p) => TOP + plotHeight * (1 - Math.max(0, share(p)));
    const barWidth = (width - LEFT - RIGHT) / 256;
    const x = (value) => LEFT + value * barWidth;

    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const p of this.linear ? [max, max / 2] : [1, 0.1, 0.01, 0.001, 0.0001]) {
      context.fillStyle = cssColour("--line");
      context.fillRect(LEFT, y(p), width - LEFT - RIGHT, 1);
      context.fillStyle = cssColour("--muted");
      const text = this.linear ? formatPercent(p) : `${Number((100 * p).toPrecision(1))} %`;
      context.fillText(text, LEFT - 5, y(p));
    }
    context.fillStyle = cssColour("--ink");
    probabilities.forEach((p, value) => {
      context.fillRect(x(value), y(p), barWidth + 0.3, TOP + plotHeight - y(p));
    });
    const ramp = context.createLinearGradient(LEFT, 0, width - RIGHT, 0);
    ramp.addColorStop(0, "rgb(0 0 0)");
    ramp.addColorStop(1, `rgb(${[0, 1, 2].map((c) => ((this.channel ?? c) === c ? 255 : 0)).join(" ")})`);
    context.fillStyle = ramp;
    context.fillRect(LEFT, TOP + plotHeight + 4, width - LEFT - RIGHT, RAMP);
    const mark = (value, colour) => {
      const markWidth = Math.max(barWidth, 4);
      const left = Math.min(x(value), width - RIGHT - markWidth);
      const top = Math.min(y(probabilities[value]), TOP + plotHeight - MARK_HEIGHT);
      context.fillStyle = colour;
      context.fillRect(left, top, markWidth, TOP + plotHeight + 4 - top);
      context.fillRect(left - 1, TOP + plotHeight, markWidth + 2, 4);
      const middle = left + markWidth / 2;
      context.beginPath(); // an arrow above the bar
      context.moveTo(middle, top - 1);
      context.lineTo(middle - 5, top - 9);
      context.lineTo(middle + 5, top - 9);
      context.fill();
    };
    if (chosen !== null && chosen !== actual) mark(chosen, cssColour("--chosen"));
    if (actual !== null) mark(actual, cssColour("--cursor"));
    context.fillStyle = cssColour("--muted");
    context.textBaseline = "alphabetic";
    TICKS.forEach((value, k) => {
      context.textAlign = ["left", "center", "right"][k];
      context.fillText(String(value), k === 2 ? width - RIGHT : x(value), height - 5);
    });
    if (this.hovered !== null) this.drawTooltip(context, width, cssColour);
  }

  /** Draw the value under the pointer and its probability. */
  drawTooltip(context, width, cssColour) {
    const text = `${this.hovered}: ${formatPercent(this.content.probabilities[this.hovered])}`;
    context.textAlign = "right";
    context.font = "600 12px system-ui, sans-serif";
    const textWidth = context.measureText(text).width;
    context.fillStyle = cssColour("--card");
    context.fillRect(width - RIGHT - textWidth - 8, TOP, textWidth + 8, 18);
    context.fillStyle = cssColour("--ink");
    context.fillText(text, width - RIGHT - 4, TOP + 13);
  }
}
