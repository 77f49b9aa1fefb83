/** Bars of the probabilities of one pixel's values, with a sentence about them. */

import { Chart, connectScale, darkScheme } from "./chart.js";
import { channelNames, describeNext, describeRoll } from "./format.js";
import { applySampling } from "./sampling.js";

/** The charts of a dice stage, one per channel. They show the distributions as the sliders shape them. */
export class PixelBars {
  /**
   * @param {HTMLElement} element of the stage
   * @param {() => object} getSampling returns the sampling values
   * @param {(channel: number, value: number) => void} onPick is called when a bar is clicked
   */
  constructor(element, getSampling, onPick) {
    const find = (name) => element.querySelector(`[data-dice-${name}]`);
    Object.assign(this, { getSampling, onPick, charts: [] });
    [this.verdict, this.chartList] = ["verdict", "charts"].map(find);
    this.scale = connectScale(find("scale"), `${element.id}-scale`, "linear", () => this.draw());
    darkScheme.addEventListener("change", () => this.draw());
    this.clear();
  }

  /** Create the charts of a model. */
  setModel(model) {
    const names = channelNames(model);
    this.charts = names.map((name, channel) => {
      const chart = new Chart(name, names.length > 1 ? channel : null,
        (value) => this.onPick(channel, value));
      chart.canvas.className = "chart";
      return chart;
    });
    this.chartList.replaceChildren(...this.charts.map(({ canvas }) => canvas));
    this.chartList.dataset.charts = names.length;
    this.clear();
  }

  clear() {
    Object.assign(this, { pixel: null, answer: null, marked: false });
    for (const chart of this.charts) chart.clear();
  }

  /** Set the pixel whose bars are shown, its distributions and its values. */
  setPixel(pixel, answer, values) {
    Object.assign(this, { pixel, answer, values });
  }

  /** Show the bars; `marked`: with the values that the dice chose. */
  show(marked) {
    this.marked = marked;
    this.draw();
  }

  /** Draw the bars again, because the sliders, the scale or the colours have changed. */
  draw() {
    if (!this.answer) return;
    this.distributions.forEach((probabilities, c) => {
      this.charts[c].linear = this.scale.linear;
      this.charts[c].show(probabilities, this.marked ? this.values[c] : null, null);
    });
  }

  /** The distribution of each channel, as the sliders shape it. */
  get distributions() {
    const { answer: { conditional, unconditional }, getSampling } = this;
    return conditional.map((p, c) => applySampling(p, unconditional?.[c], getSampling()));
  }

  /** Show a sentence above the bars; `live`: screen readers read it aloud. */
  say(text, live) {
    this.verdict.ariaLive = live ? "polite" : "off";
    this.verdict.textContent = text;
  }

  /** Describe what is likely next. */
  get next() {
    return describeNext(this.distributions);
  }

  /** Describe values of the pixel and their chances. */
  describe(values = this.values) {
    return describeRoll(values, this.distributions.map((probabilities, c) => probabilities[values[c]]));
  }
}
