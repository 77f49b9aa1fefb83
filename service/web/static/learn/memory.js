/** Scene two: a state of fixed size beside a memory that grows with every pixel. */

import { post } from "../api.js";
import { guides, hold, randomSeed } from "../fields.js";
import { area } from "../pixels.js";
import { Player, calm } from "../player.js";
import { follow } from "../stream.js";
import { whole } from "../format.js";

const SECONDS = 8;

/** Draws an image and counts what each kind of transformer reads for it. */
export class MemoryScene {
  constructor(place, say, fail) {
    this.say = say;
    this.player = new Player(place.querySelector("canvas"), (position) => this.moved(position));
    [this.fixed, this.growing] = place.querySelectorAll(".meter");
    this.told = place.querySelectorAll("[data-attention]");
    this.button = place.querySelector("button");
    this.button.addEventListener("click", () => this.draw().catch(fail));
  }

  /** Begin with an empty picture. */
  set(model, signal) {
    Object.assign(this, { model, signal });
    for (const part of this.told) part.hidden = part.dataset.attention !== model.attention;
    this.player.stop();
    this.player.begin(model);
  }

  async draw() {
    const { model, signal, player } = this;
    const label = guides(model) ? { label: "random" } : {};
    const asked = { model: model.id, seed: randomSeed(), stream: true, ...label };
    const release = hold(this.button);
    player.begin(model);
    player.rate = calm.matches ? Infinity : area(model) / SECONDS;
    try {
      await follow(
        () => post("v1/samples", asked, signal),
        (event) => player.hear(event),
        this.say,
        signal,
      );
      await player.rested();
      if (signal.aborted) return;
      const pixels = area(model);
      const read = `read its state ${whole.format(pixels)} times`;
      const back = `looked back ${whole.format((pixels * (pixels - 1)) / 2)} times`;
      this.say(model.attention === "softmax"
        ? `This model ${back}; a linear one would have ${read}.`
        : `This model ${read}; an ordinary one would have ${back}.`);
    } finally {
      release(this.button);
    }
  }

  /** Count what the next pixel needs, and what all until now needed. */
  moved(position) {
    if (!this.model) return;
    const total = area(this.model);
    const show = (meter, share, text) => {
      meter.style.setProperty("--done", String(share));
      meter.querySelector("span").textContent = text;
    };
    show(this.fixed, 1 / total, `1 state; read ${whole.format(position)} times so far`);
    show(this.growing, position / total, `${whole.format(position)} pixels kept; `
      + `${whole.format((position * Math.max(0, position - 1)) / 2)} looked back at so far`);
  }
}
