/** The model's prediction at one pixel: charts, a one-sentence summary, and the pixels around it. */

import { fetchDistributions } from "./api.js";
import { Chart, connectScale, darkScheme } from "./chart.js";
import {
  argmax, channelNames, colourName, describeSurprise, formatBits, formatPercent, toBits,
} from "./format.js";
import { PixelCanvas } from "./pixel-canvas.js";
import { pixelColour } from "./pixels.js";
import { applySampling } from "./sampling.js";

const REACH = 3; // pixels that the magnifier shows on each side
const NEIGHBOURS = [
  ["left", -1, 0], ["above left", -1, -1], ["above", 0, -1], ["above right", 1, -1],
];
const DIM = 70; // alpha of the pixels after the current one

/** Requests distributions, one query at a time and always for the latest position. */
export class Prediction {
  /**
   * @param {object} host
   *   `getSampling()` returns the sampling values to apply;
   *   `getChosen()` returns the chosen value of each channel, none before a choice;
   *   `getBits(at)` returns the measured bits of a pixel, if known;
   *   `onPick(channel, value)` is called when a value is picked in a chart;
   *   `onWait(text)` is called while the server is full;
   *   `onAnswer()` and `onError(error)` are called after each query
   */
  constructor(host) {
    this.host = host;
    this.loading = false;
    this.pendingQuery = null;
    this.answer = null;
    this.generation = 0; // counts the calls of clear()
    this.summaryLine = document.getElementById("verdict");
    this.magnifier = new PixelCanvas(document.getElementById("magnifier"));
    darkScheme.addEventListener("change", () => this.draw());
    this.scale = connectScale(document.getElementById("chart-scale"), "scale", "log", () => this.draw());
  }

  /** Switch to a model, with one chart per channel. */
  setModel(model) {
    this.model = model;
    this.answer = this.pendingQuery = null;
    this.names = channelNames(model);
    this.charts = this.names.map((name, c) => {
      const channel = model.channels === 3 ? c : null;
      return new Chart(name, channel, (value) => this.host.onPick(c, value), { drag: true });
    });
    const container = document.getElementById("charts");
    container.replaceChildren(...this.charts.map(({ canvas }) => canvas));
    container.dataset.charts = this.charts.length;
  }

  /** Remove the prediction, and drop the queries for the old picture. */
  clear() {
    this.answer = this.pendingQuery = null;
    this.generation += 1;
    for (const id of ["verdict", "expected-text", "neighbours"]) {
      document.getElementById(id).textContent = "";
    }
    for (const chart of this.charts) chart.clear();
    const { canvas } = this.magnifier;
    canvas.width = canvas.height = 2 * REACH + 1;
  }

  /** Query the prediction at pixel `at` of a picture whose first `available` pixels are drawn. */
  async query(picture, at, available, label) {
    this.latest = this.pendingQuery = { picture, at, available, label };
    if (this.loading) return;
    this.setLoading(true);
    await null; // a picture that is opened moves to several pixels at once, and only the last counts
    while (this.pendingQuery) {
      const { model, pendingQuery: query, generation } = this;
      this.pendingQuery = null;
      try {
        const answer = await this.fetchAnswer(model, query);
        if (model === this.model && generation === this.generation) this.showAnswer(answer);
      } catch (error) {
        // Go on: another position may be pending.
        if (generation === this.generation) this.host.onError(error);
      }
    }
    this.setLoading(false);
  }

  setLoading(loading) {
    this.loading = loading;
    document.getElementById("charts").ariaBusy = String(loading);
  }

  async fetchAnswer(model, { picture, at, available, label }) {
    const { channels } = model;
    const drawn = at < available;
    const before = Array.from(picture.values.subarray(0, at * channels));
    const actual = drawn ? [...picture.values.subarray(at * channels, (at + 1) * channels)] : null;
    // An unreachable server is reported at once, because each key press sends another query.
    const fetchAfter = (values, unconditional) => fetchDistributions(
      model, [...before, ...values], label, unconditional, null,
      { retryLost: false, onStatus: this.host.onWait });
    const guided = Boolean(label) && this.host.getSampling().guidance !== 1;
    const { conditional: distributions, unconditional } =
      await fetchAfter(drawn ? actual.slice(0, -1) : [], guided);
    // The expected colour: each channel given the expected values, not the actual values, of the
    // channels before it. Another query is needed only where the two differ.
    const expected = [];
    for (const [c, probabilities] of distributions.entries()) {
      const same = expected.every((value, i) => value === actual[i]);
      expected.push(argmax(same ? probabilities : (await fetchAfter(expected, false)).conditional[c]));
    }
    return { picture, at, available, label, actual, distributions, unconditional, expected };
  }

  showAnswer(answer) {
    this.answer = answer;
    const { actual, distributions } = answer;
    const bits = this.host.getBits(answer.at)
      ?? actual?.reduce((sum, value, c) => sum + toBits(distributions[c][value]), 0);
    this.summaryLine.textContent = answer.expected.length === this.charts.length
      ? describeSurprise(answer.expected, actual, bits)
      : "This pixel is not drawn yet.";
    document.getElementById("expected-text").textContent = distributions.map((probabilities, c) =>
      describeChannel(this.charts.length > 1 ? this.names[c] : "", probabilities, actual?.[c])).join(" ");
    this.drawMagnifier();
    this.host.onAnswer();
    this.draw();
  }

  /** Redraw after a change of the sampling sliders; query the unconditional part if needed. */
  onSamplingChange() {
    const { answer, host, latest } = this;
    if (answer?.label && host.getSampling().guidance !== 1 && !answer.unconditional) {
      this.query(latest.picture, latest.at, latest.available, latest.label);
    }
    this.draw();
  }

  /** Draw the charts with the current sampling values and chosen values. */
  draw() {
    if (!this.answer) return;
    const { actual, distributions, unconditional } = this.answer;
    const chosen = this.host.getChosen();
    document.querySelector("#inside .chosen-key").hidden = !chosen.length;
    this.charts.forEach((chart, c) => {
      chart.canvas.hidden = !distributions[c];
      if (!distributions[c]) return;
      const shown = applySampling(distributions[c], unconditional?.[c], this.host.getSampling());
      chart.linear = this.scale.linear;
      chart.show(shown, actual?.[c] ?? null, chosen[c] ?? null);
    });
  }

  /** Show the surrounding pixels, and name the neighbours that were drawn before. */
  drawMagnifier() {
    const { picture, at, available } = this.answer;
    const { width, height, channels } = this.model;
    const [column, row] = [at % width, Math.floor(at / width)];
    const side = 2 * REACH + 1;
    const image = new ImageData(side, side);
    const pixel = (dx, dy) => {
      const [x, y] = [column + dx, row + dy];
      const p = y * width + x;
      return x < 0 || x >= width || y < 0 || y >= height || p >= available ? null : p;
    };
    for (let k = 0; k < side * side; k += 1) {
      const p = pixel((k % side) - REACH, Math.floor(k / side) - REACH);
      if (p !== null) image.data.set([...pixelColour(picture, p), p <= at ? 255 : DIM], 4 * k);
    }
    const { canvas } = this.magnifier;
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
    this.magnifier.mark((side * side - 1) / 2);
    const neighbours = NEIGHBOURS.map(([name, dx, dy]) => {
      const p = pixel(dx, dy);
      if (p === null || p >= at) return null;
      const values = [...picture.values.subarray(p * channels, (p + 1) * channels)];
      return `${name} ${channels === 1 ? values[0] : colourName(values)}`;
    }).filter(Boolean);
    document.getElementById("neighbours").textContent = neighbours.length
      ? `Neighbours drawn before: ${neighbours.join(", ")}.` : "No neighbour was drawn before.";
  }
}

/** Describe the distribution of one channel in words. */
function describeChannel(name, probabilities, actual) {
  const best = argmax(probabilities);
  const subject = name ? `${name}: most` : "Most";
  const likely = `${subject} likely ${best} (${formatPercent(probabilities[best])})`;
  if (actual === undefined) return `${likely}.`;
  const p = probabilities[actual];
  return `${likely}; it is ${actual} (${formatPercent(p)}, ${formatBits(toBits(p))}).`;
}
