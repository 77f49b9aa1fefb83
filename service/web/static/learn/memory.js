/** Scene 2: a state of fixed size, compared with a memory that grows with every pixel. */

import { randomSeed, usesGuidance } from "../fields.js";
import { integerFormat } from "../format.js";
import { pixelCount } from "../pixels.js";
import { Player, reducedMotion } from "../player.js";
import { followGeneration } from "../stream.js";

const SECONDS_PER_IMAGE = 8;

/** Draws an image and shows what linear and softmax attention read for each pixel. */
export class MemoryScene {
  constructor(element, onStatus) {
    Object.assign(this, { element, onStatus });
    this.player = new Player(element.querySelector("canvas"), (position) => this.showCounts(position));
    [this.linearMeter, this.softmaxMeter] = element.querySelectorAll(".meter");
    this.texts = element.querySelectorAll("[data-attention]");
  }

  start(model, signal) {
    Object.assign(this, { model, signal });
    this.element.hidden = model.attention.startsWith("lsh"); // reads neither one state nor everything
    const kind = model.attention === "softmax" ? "softmax" : "linear"; // all others have a state of fixed size
    for (const text of this.texts) text.hidden = text.dataset.attention !== kind;
    this.player.stop();
    this.player.reset(model);
  }

  async draw() {
    const { model, signal, player } = this;
    const label = usesGuidance(model) ? { label: "random" } : {};
    const fields = { model: model.id, seed: randomSeed(), ...label };
    player.reset(model);
    player.rate = reducedMotion.matches ? Infinity : pixelCount(model) / SECONDS_PER_IMAGE;
    await followGeneration({ fields }, (event) => player.handleEvent(event), this.onStatus, signal);
    await player.paused();
    if (signal.aborted) return;
    const count = integerFormat.format(pixelCount(model) - 1);
    this.onStatus(model.attention === "softmax"
      ? `For its last pixel, this model looked at ${count} pixels; a linear one would have read one state.`
      : `For its last pixel, this model read one state; an ordinary one would have looked at ${count} pixels.`);
  }

  /** Show what the next pixel costs: one state, or every pixel so far. */
  showCounts(position) {
    if (!this.model) return;
    const total = pixelCount(this.model);
    const setMeter = (meter, share, text) => {
      meter.style.setProperty("--done", String(share));
      meter.querySelector("span").textContent = text;
    };
    const next = Math.min(position, total - 1);
    setMeter(this.linearMeter, 1 / total, "Next pixel: reads one state, always of the same size");
    setMeter(this.softmaxMeter, next / total,
      `Next pixel: looks at ${integerFormat.format(next)} kept pixels, and at one more each time`);
  }
}
