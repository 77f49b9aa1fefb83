/** The view "Learn": four scenes in a minute, each played by the model that is chosen. */

import { call, explain, isLost, patiently, pause } from "./api.js";
import { BitsScene } from "./learn/bits.js";
import { DiceScene } from "./learn/dice.js";
import { LimitsScene } from "./learn/limits.js";
import { MemoryScene } from "./learn/memory.js";
import { whole } from "./format.js";

const AWAY_SECONDS = 10; // after a scene has failed, before the server is looked for

/** The scenes, and what the model is. */
export class LearnView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.scenes = [
      [DiceScene, "dice"], [MemoryScene, "memory"], [BitsScene, "bits"], [LimitsScene, "limits"],
    ].map(([Scene, name]) => {
      const place = document.getElementById(`scene-${name}`);
      const line = place.querySelector("[data-status]");
      const say = (sentence) => { line.textContent = sentence; };
      const one = { say, failed: false };
      place.addEventListener("click", ({ target }) => {
        if (target.closest("button")) one.failed = false; // a person begins it anew
      });
      one.fail = (error) => {
        if (error.name === "AbortError") return;
        one.failed = true;
        say(explain(error));
        if (isLost(error)) this.awaitServer();
      };
      one.scene = new Scene(place, say, one.fail);
      return one;
    });
  }

  /** Take a model; the scenes begin when the view is opened. */
  use(model) {
    this.model = model;
    this.abort?.abort();
    document.getElementById("learn-facts").replaceChildren(...Object.entries({
      Draws: `${model.width} × ${model.height} ${model.channels === 3 ? "colour" : "grey"} pictures`,
      Knows: model.classes.length ? model.classes.join(", ") : "no classes",
      Parameters: whole.format(model.parameters),
      "Steps an image": whole.format(model.steps),
      "Bits/dim": model.bits_per_dim === null ? "not measured" : model.bits_per_dim.toFixed(3),
      "Draws at once": `${whole.format(model.slots)} images (${model.backend})`,
    }).flatMap(([name, text]) => {
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = text;
      return [term, description];
    }));
  }

  /** Set every scene with the model. */
  open() {
    this.abort?.abort();
    this.abort = new AbortController();
    this.page.link("learn", { model: this.model.id });
    document.getElementById("learn-model").textContent = this.model.id;
    this.scenes.forEach((one) => this.set(one));
  }

  /** The view is in front again: what failed meanwhile begins anew. */
  again() {
    this.scenes.filter(({ failed }) => failed).forEach((one) => this.set(one));
  }

  /** Wait, in silence, until the server is there again, and begin anew what has failed. */
  async awaitServer() {
    const { signal } = this.abort;
    if (this.awaiting === signal) return; // for all of them
    this.awaiting = signal;
    try {
      await pause(AWAY_SECONDS, signal);
      await patiently(() => call("v1/models", { signal }), signal, { most: Infinity });
    } catch { // another model is looked at, or there is a server that refuses
      return;
    } finally {
      if (this.awaiting === signal) this.awaiting = null;
    }
    this.again();
  }

  set(one) {
    one.failed = false;
    one.say("");
    Promise.resolve(one.scene.set(this.model, this.abort.signal)).catch(one.fail);
  }
}
