/** Scene 2: a state of fixed size, compared with a memory that grows with every pixel. */

import { post } from "../api.js";
import { disableButtons, randomSeed, usesGuidance } from "../fields.js";
import { integerFormat } from "../format.js";
import { pixelCount } from "../pixels.js";
import { Player, reducedMotion } from "../player.js";
import { followGeneration } from "../stream.js";

const SECONDS_PER_IMAGE = 8;

/** Draws an image and counts what linear and softmax attention read for it. */
export class MemoryScene {
  constructor(element, onStatus, onError) {
    this.onStatus = onStatus;
    this.player = new Player(element.querySelector("canvas"), (position) => this.showCounts(position));
    [this.linearMeter, this.softmaxMeter] = element.querySelectorAll(".meter");
    this.texts = element.querySelectorAll("[data-attention]");
    this.button = element.querySelector("button");
    this.button.addEventListener("click", () => this.draw().catch(onError));
  }

  start(model, signal) {
    Object.assign(this, { model, signal });
    for (const text of this.texts) text.hidden = text.dataset.attention !== model.attention;
    this.player.stop();
    this.player.reset(model);
  }

  async draw() {
    const { model, signal, player } = this;
    const label = usesGuidance(model) ? { label: "random" } : {};
    const body = { model: model.id, seed: randomSeed(), stream: true, ...label };
    const enable = disableButtons(this.button);
    player.reset(model);
    player.rate = reducedMotion.matches ? Infinity : pixelCount(model) / SECONDS_PER_IMAGE;
    try {
      await followGeneration(
        () => post("v1/samples", body, signal),
        (event) => player.handleEvent(event),
        this.onStatus,
        signal,
      );
      await player.paused();
      if (signal.aborted) return;
      const pixels = pixelCount(model);
      const linear = `read its state ${integerFormat.format(pixels)} times`;
      const softmax = `looked back ${integerFormat.format((pixels * (pixels - 1)) / 2)} times`;
      this.onStatus(model.attention === "softmax"
        ? `This model ${softmax}; a linear one would have ${linear}.`
        : `This model ${linear}; an ordinary one would have ${softmax}.`);
    } finally {
      enable(this.button);
    }
  }

  /** Show the memory that the next pixel needs, and the reads for all pixels so far. */
  showCounts(position) {
    if (!this.model) return;
    const total = pixelCount(this.model);
    const setMeter = (meter, share, text) => {
      meter.style.setProperty("--done", String(share));
      meter.querySelector("span").textContent = text;
    };
    setMeter(this.linearMeter, 1 / total, `1 state; read ${integerFormat.format(position)} times so far`);
    setMeter(this.softmaxMeter, position / total, `${integerFormat.format(position)} pixels kept; `
      + `${integerFormat.format((position * Math.max(0, position - 1)) / 2)} looked back at so far`);
  }
}
