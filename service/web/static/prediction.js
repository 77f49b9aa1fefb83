/** What the model expects at a pixel: its charts, the verdict, and the pixels around it. */

import { patiently, postJson } from "./api.js";
import { Chart, scheme } from "./chart.js";
import { colour } from "./pixels.js";
import { PixelCanvas } from "./pixel-canvas.js";
import { reshape } from "./sampling.js";
import { bitsOf, channelsOf, cost, likeliest, nameOf, percent, verdict } from "./format.js";

const REACH = 3; // pixels of the lens to each side
const BEFORE = [["left", -1, 0], ["above left", -1, -1], ["above", 0, -1], ["above right", 1, -1]];
const DIM = 70;

/** Asks for distributions, one question at a time and always about the latest place. */
export class Prediction {
  /**
   * @param {object} on values() gives the temperature, guidance and top_p to show, pick(channel, value) hears of a value
   *   chosen in a chart, chosen() gives those chosen, changed() hears of every answer, failed(error),
   *   measured(at) gives the bits of a pixel once they are known
   */
  constructor(on) {
    this.on = on;
    this.asking = false;
    this.wanted = null;
    this.answer = null;
    this.cleared = 0;
    this.verdictLine = document.getElementById("verdict");
    this.lens = new PixelCanvas(document.getElementById("lens"));
    scheme.addEventListener("change", () => this.draw());
    for (const input of document.querySelectorAll("#chart-scale input")) {
      input.addEventListener("change", () => {
        for (const chart of this.charts) chart.linear = input.value === "linear";
        this.draw();
      });
    }
  }

  /** Take a model: one chart a channel. */
  use(model) {
    this.model = model;
    this.answer = this.wanted = null;
    this.names = channelsOf(model);
    const linear = document.querySelector("#chart-scale input[value=linear]").checked;
    this.charts = this.names.map((name, c) => {
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.ariaLabel = `${name}: how likely each of 256 values is`;
      const chart = new Chart(canvas, model.channels === 3 ? c : null, (value) => this.on.pick(c, value));
      chart.linear = linear;
      return chart;
    });
    const box = document.getElementById("charts");
    box.replaceChildren(...this.charts.map(({ canvas }) => canvas));
    box.dataset.charts = this.charts.length;
  }

  /** Forget what was said of another picture. */
  clear() {
    this.answer = this.wanted = null;
    this.cleared += 1; // what is asked of it already is not shown any more
    for (const id of ["verdict", "expected-text", "neighbours"]) document.getElementById(id).textContent = "";
    for (const chart of this.charts) chart.clear();
    const { canvas } = this.lens;
    canvas.width = canvas.height = 2 * REACH + 1;
  }

  /** Ask what may come at a pixel of a picture, of which `available` pixels are there. */
  async ask(picture, at, available, label) {
    this.wanted = { picture, at, available, label };
    if (this.asking) return;
    this.setAsking(true);
    while (this.wanted) {
      const { model, wanted, cleared } = this;
      this.wanted = null;
      try {
        const answer = await this.fetch(model, wanted);
        if (model === this.model && cleared === this.cleared) this.take(answer);
      } catch (error) {
        if (cleared === this.cleared) this.on.failed(error); // by now another place may be wanted
      }
    }
    this.setAsking(false);
  }

  setAsking(yes) {
    this.asking = yes;
    document.getElementById("charts").ariaBusy = String(yes);
  }

  async fetch(model, { picture, at, available, label }) {
    const { channels } = model;
    const there = at < available;
    const before = Array.from(picture.values.subarray(0, at * channels));
    const actual = there ? [...picture.values.subarray(at * channels, (at + 1) * channels)] : null;
    const askOne = async (values, named) => {
      const asked = { model: model.id, values: [...before, ...values], ...named };
      // Told at once where the server is away: it is asked at every key.
      return (await patiently(() => postJson("v1/distribution", asked), null, { lost: false })).probabilities;
    };
    const askAll = (named) => Promise.all(Array.from({ length: there ? channels : 1 },
      (_, c) => askOne(actual?.slice(0, c) ?? [], named)));
    const own = label ? { label } : {};
    const guided = label && this.on.values().guidance !== 1;
    const [distributions, unlabelled] = await Promise.all([askAll(own), guided ? askAll({}) : null]);
    // A channel is expected after those that were: what came of them may say another colour.
    const expected = [];
    for (const [c, probabilities] of distributions.entries()) {
      const came = expected.every((value, i) => value === actual[i]);
      expected.push(likeliest(came ? probabilities : await askOne(expected, own)));
    }
    return { picture, at, available, label, actual, distributions, unlabelled, expected };
  }

  take(answer) {
    this.answer = answer;
    const { actual, distributions } = answer;
    const bits = this.on.measured(answer.at)
      ?? actual?.reduce((sum, value, c) => sum + bitsOf(distributions[c][value]), 0);
    this.verdictLine.textContent = answer.expected.length === this.charts.length
      ? verdict(answer.expected, actual, bits)
      : "This pixel is still to come.";
    document.getElementById("expected-text").textContent = distributions.map((probabilities, c) =>
      tell(this.charts.length > 1 ? this.names[c] : "", probabilities, actual?.[c])).join(" ");
    this.drawLens();
    this.on.changed();
    this.draw();
  }

  /** The dials were turned: show what they make of it, asking for what that takes. */
  turned() {
    const { answer, on } = this;
    if (answer?.label && on.values().guidance !== 1 && !answer.unlabelled) {
      this.ask(answer.picture, answer.at, answer.available, answer.label);
    }
    this.draw();
  }

  /** Draw the charts, as the dials and the values chosen are now. */
  draw() {
    if (!this.answer) return;
    const { actual, distributions, unlabelled } = this.answer;
    const chosen = this.on.chosen();
    this.charts.forEach((chart, c) => {
      chart.canvas.hidden = !distributions[c];
      if (!distributions[c]) return;
      const shown = reshape(distributions[c], unlabelled?.[c], this.on.values());
      chart.show(shown, actual?.[c] ?? null, chosen[c] ?? null);
    });
  }

  /** Show the pixels around, and name those that the model has just drawn. */
  drawLens() {
    const { picture, at, available } = this.answer;
    const { width, height } = this.model;
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
      if (p !== null) image.data.set([...colour(picture, p), p <= at ? 255 : DIM], 4 * k);
    }
    const { canvas } = this.lens;
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
    this.lens.mark((side * side - 1) / 2);
    const { channels } = this.model;
    const near = BEFORE.map(([name, dx, dy]) => {
      const p = pixel(dx, dy);
      if (p === null || p >= at) return null;
      const values = [...picture.values.subarray(p * channels, (p + 1) * channels)];
      return `${name} ${channels === 1 ? values[0] : nameOf(values)}`;
    }).filter(Boolean);
    document.getElementById("neighbours").textContent = near.length
      ? `Neighbours drawn before: ${near.join(", ")}.` : "Nothing beside it was drawn before.";
  }
}

/** Say a distribution in words. */
function tell(name, probabilities, actual) {
  const best = likeliest(probabilities);
  const likely = `${name ? `${name}: most` : "Most"} likely ${best} (${percent(probabilities[best])})`;
  if (actual === undefined) return `${likely}.`;
  const p = probabilities[actual];
  return `${likely}; it is ${actual} (${percent(p)}, ${cost(bitsOf(p))}).`;
}
