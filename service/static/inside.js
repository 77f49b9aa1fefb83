/** The view "Look inside": what surprised the model, and what it expects next. */

import { call, explain, follow, postJson } from "./api.js";
import { randomSeed } from "./draw.js";
import { area, fromFile, toPng } from "./pixels.js";
import { Player, calm } from "./player.js";

const MAGMA = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];
const CHANNELS = [["Brightness"], ["Red", "Green", "Blue"]];

/** Give a colour for 0 … 1. */
function heat(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (MAGMA.length - 1);
  const k = Math.floor(at);
  return MAGMA[k].map((low, c) => Math.round(low + (at - k) * (MAGMA[k + 1][c] - low)));
}

/** Shows one picture: its pixels, their bits, and the distribution at a place. */
export class InsideView {
  constructor(page) {
    this.page = page;
    this.view = document.getElementById("inside");
    this.form = document.getElementById("inside-form");
    this.report = document.querySelector("#inside [data-report]");
    this.heatCanvas = document.getElementById("inside-heat");
    this.player = new Player(document.getElementById("inside-picture"), (p) => this.moved(p));
    this.asking = false;
    const { position, speed } = this.form.elements;
    const file = document.getElementById("inside-file");
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    position.addEventListener("input", () => {
      this.player.stop();
      this.player.seek(Number(position.value));
    });
    speed.addEventListener("change", () => this.setSpeed());
    on("inside-new", () => this.drawNew());
    on("inside-play", () => this.replay());
    on("inside-upload", () => file.click());
    file.addEventListener("change", async () => {
      const [chosen] = file.files;
      file.value = "";
      if (!chosen) return;
      try {
        this.show({ ...(await fromFile(chosen, this.model)), known: null }, "Your picture", "");
      } catch (error) {
        this.say(explain(error));
      }
    });
  }

  /** Take a model, and forget the picture of another. */
  use(model) {
    this.model = model;
    this.form.elements.position.max = area(model) - 1;
    const names = CHANNELS[model.channels === 3 ? 1 : 0];
    const charts = names.map((name) => {
      const canvas = document.createElement("canvas");
      canvas.width = 512;
      canvas.height = model.channels === 3 ? 120 : 280;
      canvas.setAttribute("role", "img");
      canvas.ariaLabel = `${name} expected next`;
      return canvas;
    });
    document.getElementById("charts").replaceChildren(...charts);
    this.charts = charts;
    this.clear();
  }

  clear() {
    this.abort?.abort(new DOMException("replaced", "AbortError"));
    this.abort = new AbortController();
    this.drawing = false;
    this.title = "";
    this.bits = null;
    this.label = "";
    this.player.stop();
    this.player.begin(this.model);
    this.heatCanvas.width = this.model.width;
    this.heatCanvas.height = this.model.height;
  }

  /** Open the view; with nothing to show, draw something. */
  open() {
    if (!this.player.available && !this.drawing) this.drawNew();
    else this.ask();
  }

  /** Look at a finished picture. */
  async show(picture, title, label) {
    this.clear();
    this.label = label;
    this.title = title;
    this.player.load({ ...picture, known: null });
    this.player.seek(Math.floor(this.player.total / 2));
    await this.measure();
  }

  /** Draw a new one here, slowly, with what is expected shown on the way. */
  async drawNew() {
    this.clear();
    this.title = "Being drawn";
    this.setSpeed();
    if (calm.matches) this.player.rate = Infinity;
    this.drawing = true;
    const { abort } = this;
    const body = { model: this.model.id, seed: randomSeed(), stream: true };
    this.say("");
    try {
      await follow(
        () => call("v1/samples", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(body),
          signal: abort.signal,
        }),
        ({ name, data }) => {
          if (abort.signal.aborted) return;
          if (name === "pixels") {
            for (const { position, values } of data.updates) this.player.write(position, values);
          } else if (name === "error") {
            this.say(data.error.message);
          }
        },
        (sentence) => this.say(sentence),
        abort.signal,
      );
      if (abort.signal.aborted) return;
      this.title = `Seed ${body.seed}`;
      await this.measure();
    } catch (error) {
      if (!abort.signal.aborted) this.say(explain(error));
    } finally {
      if (this.abort === abort) this.drawing = false;
    }
  }

  replay() {
    if (!this.player.available) return;
    this.setSpeed();
    this.player.seek(0);
    this.player.play();
  }

  setSpeed() {
    this.player.rate = Number(this.form.elements.speed.value);
  }

  /** Have the picture measured, and show what each pixel cost. */
  async measure() {
    const { signal } = this.abort;
    const body = new FormData();
    body.set("image", await toPng(this.player.picture), "picture.png");
    body.set("model", this.model.id);
    body.set("per_pixel", "true");
    if (this.label) body.set("label", this.label);
    try {
      const reply = await call("v1/score", { method: "POST", body, signal });
      const [score] = (await reply.json()).data;
      if (signal.aborted) return;
      this.bits = score.pixel_bits;
      this.title += `: ${score.bits_per_dim.toFixed(3)} bits/dim, ${Math.round(score.bits)} bits in all`;
      this.moved(this.player.position);
    } catch (error) {
      if (!signal.aborted) this.say(explain(error));
    }
  }

  /** The picture stands at another pixel. */
  moved(position) {
    if (!this.charts) return;
    const at = Math.min(position, this.player.total - 1);
    const { width } = this.model;
    this.form.elements.position.value = at;
    this.form.elements.place.textContent = `row ${Math.floor(at / width) + 1}, column ${(at % width) + 1}`;
    document.getElementById("inside-caption").textContent = this.title ?? "";
    this.drawHeat(position);
    this.ask();
  }

  /** Paint the bits of the pixels shown; the rest dim, or not yet while it is being drawn. */
  drawHeat(position) {
    if (!this.bits) return;
    const most = Math.max(1, Math.ceil(this.bits.toSorted((a, b) => a - b)[
      Math.floor(this.bits.length * 0.995)]));
    document.getElementById("heat-most").textContent = most;
    const rest = this.player.moving && position < this.player.total ? 0 : 110;
    const image = new ImageData(this.model.width, this.model.height);
    this.bits.forEach((bits, p) => {
      image.data.set([...heat(bits / most), p < position ? 255 : rest], 4 * p);
    });
    this.heatCanvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Ask what may come at this pixel; one question at a time, always about the latest place. */
  async ask() {
    if (this.view.hidden) return;
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    const { model } = this;
    const { channels } = model;
    const { position, picture } = this.player;
    const at = Math.min(position, this.player.total - 1);
    const there = at < this.player.available;
    try {
      const count = there ? channels : 1;
      const replies = await Promise.all(Array.from({ length: count }, (_, c) =>
        postJson("v1/distribution", {
          model: model.id,
          values: Array.from(picture.values.subarray(0, at * channels + c)),
          ...(this.label ? { label: this.label } : {}),
        })));
      if (model !== this.model) throw new DOMException("replaced", "AbortError");
      const actual = there ? picture.values.subarray(at * channels, (at + 1) * channels) : [];
      const names = channels === 3 ? CHANNELS[1] : [""];
      replies.forEach(({ probabilities }, c) =>
        chart(this.charts[c], probabilities, actual[c], channels === 3 ? c : null));
      document.getElementById("expected-text").textContent =
        `${replies.map(({ probabilities }, c) => tell(names[c], probabilities, actual[c])).join(" ")} `
        + "Height is the root of the probability, so that rare values can be seen.";
    } catch (error) {
      if (error.name !== "AbortError") {
        this.say(explain(error));
        this.again = false;
      }
    }
    this.asking = false;
    if (this.again) {
      this.again = false;
      this.ask();
    }
  }

  say(sentence) {
    const line = document.createElement("p");
    line.setAttribute("role", "status");
    line.textContent = sentence;
    this.report.replaceChildren(line);
  }
}

/** Say a distribution in words. */
function tell(name, probabilities, actual) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  const percent = (p) => (p >= 0.1 ? `${Math.round(p * 100)} %` : `${(p * 100).toPrecision(2)} %`);
  const likely = `${name ? `${name}: most` : "Most"} likely ${best} (${percent(probabilities[best])})`;
  if (actual === undefined) return `${likely}.`;
  const p = probabilities[actual];
  return `${likely}; it is ${actual} (${percent(p)}, ${(-Math.log2(p)).toFixed(1)} bits).`;
}

/** Paint 256 probabilities as bars over a ramp of intensities; the true value in the accent. */
function chart(canvas, probabilities, actual, channel) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const style = getComputedStyle(canvas);
  const bar = width / 256;
  const floor = height - 26;
  context.clearRect(0, 0, width, height);
  probabilities.forEach((p, value) => {
    context.fillStyle = style.getPropertyValue(value === actual ? "--cursor" : "--ink");
    const tall = Math.sqrt(p) * (floor - 8); // the root, so that what is rare can be seen
    context.fillRect(value * bar, floor - tall, value === actual ? 5 : bar + 1, tall);
    const shade = [0, 1, 2].map((c) => (channel === null || c === channel ? value : 0));
    context.fillStyle = `rgb(${shade.join(" ")})`;
    context.fillRect(value * bar, floor + 8, bar + 1, 18);
  });
  if (actual !== undefined) {
    context.fillStyle = style.getPropertyValue("--cursor");
    context.fillRect(Math.min(width - 5, actual * bar), floor, 5, 8);
  }
}
