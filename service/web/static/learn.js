/** The view "Learn": four scenes that explain the model, each run by the model itself. */

import { describeError } from "./api.js";
import { integerFormat } from "./format.js";
import { BitsScene } from "./learn/bits.js";
import { DiceScene } from "./learn/dice.js";
import { LimitsScene } from "./learn/limits.js";
import { MemoryScene } from "./learn/memory.js";
import { modelTitle } from "./model-picker.js";

/**
 * The scenes, and a table of the model's properties. A scene has the constructor arguments
 * (element, onStatus, onError) and the method `start(model, signal)`. `draw()`, which is optional, is
 * called when its button is clicked.
 */
export class LearnView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.scenes = [
      [DiceScene, "dice"], [MemoryScene, "memory"], [BitsScene, "bits"], [LimitsScene, "limits"],
    ].map(([Scene, name]) => {
      const element = document.getElementById(`scene-${name}`);
      const line = element.querySelector("[data-status]");
      const setStatus = (text) => { line.textContent = text; };
      const entry = { setStatus, failed: false };
      element.addEventListener("click", async ({ target }) => {
        const button = target.closest("button");
        if (!button) return;
        entry.failed = false; // the visitor restarts it
        if (!entry.scene.draw || button.ariaDisabled === "true") return;
        button.ariaDisabled = "true"; // unlike `disabled`, it keeps the focus
        await entry.scene.draw().catch(entry.fail);
        button.ariaDisabled = "false";
      });
      entry.fail = (error) => {
        if (error.name === "AbortError") return;
        entry.failed = true;
        setStatus(describeError(error));
      };
      entry.scene = new Scene(element, setStatus, entry.fail);
      return entry;
    });
  }

  /** Switch to a model. Its scenes start when the view is opened. */
  setModel(model) {
    this.model = model;
    this.abort?.abort();
    document.getElementById("learn-facts").replaceChildren(...Object.entries({
      Draws: `${model.width} × ${model.height} ${model.channels === 3 ? "colour" : "grey"} pictures`,
      Classes: model.classes.length ? model.classes.join(", ") : "none",
      Parameters: integerFormat.format(model.parameters),
      "Predictions per picture": integerFormat.format(model.steps),
      "Bits per value, of new pictures": model.bits_per_dim === null ? "not measured" : model.bits_per_dim.toFixed(3),
      "Draws at once": `${integerFormat.format(model.slots)} images`,
    }).flatMap(([name, text]) => {
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = text;
      return [term, description];
    }));
  }

  /** Start all scenes. */
  open() {
    this.abort?.abort();
    this.abort = new AbortController();
    this.page.setLink("learn", { model: this.model.id });
    const { id } = this.model;
    const title = modelTitle(this.model);
    document.getElementById("learn-model").textContent = title === id ? id : `${title} (${id})`;
    this.scenes.forEach((entry) => this.start(entry));
  }

  /** Restart the failed scenes. Called when the view is shown again. */
  onShow() {
    this.scenes.filter(({ failed }) => failed).forEach((entry) => this.start(entry));
  }

  start(entry) {
    entry.failed = false;
    entry.setStatus("");
    Promise.resolve(entry.scene.start(this.model, this.abort.signal)).catch(entry.fail);
  }
}
