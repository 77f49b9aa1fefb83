/** The class and the sampling sliders of a dice stage. */

import { parseSeed, randomSeed, resolveClass, usesGuidance } from "./fields.js";
import { SamplingControls, samplingFields } from "./sampling-controls.js";

/** Controls that give the request fields of a picture. */
export class StageControls {
  /**
   * @param {HTMLElement} element of the stage
   * @param {object} handlers
   *   `onClass()` and `onSampling()` are called after a change, `onDrag()` while a slider moves
   */
  constructor(element, { onClass, onSampling, onDrag }) {
    this.classes = element.querySelector("[data-dice-class]");
    const sliders = element.querySelector("[data-dice-sampling]");
    sliders.id = `${element.id}-sampling`;
    this.sampling = new SamplingControls(sliders, onDrag);
    sliders.addEventListener("change", onSampling);
    this.classes.addEventListener("change", onClass);
  }

  /** Switch to a model: its classes and sampling defaults. */
  setModel(model) {
    Object.assign(this, { model, source: null });
    this.sampling.setModel(model);
    this.classes.replaceChildren(...["", ...model.classes]
      .map((name) => new Option(`Draw: ${name || "anything"}`, name)));
    this.classes.closest(".field").hidden = !model.classes.length;
  }

  /** Begin with another picture: that of a link, or one from a new seed. */
  begin(link) {
    const { model, classes, sampling } = this;
    const seed = (link && parseSeed(link)) ?? randomSeed();
    if (link) {
      classes.value = resolveClass(model, link.get("label") ?? "");
      sampling.setFromLink(link);
    }
    const random = model.classes[Math.floor(Math.random() * model.classes.length)];
    // With guidance, "anything" is a random class, because guidance needs one.
    const label = classes.value || (usesGuidance(model) && !link?.has("seed") ? random : "");
    sampling.enableGuidance(Boolean(label));
    this.setSource(seed, label);
  }

  /** Take the values of the sliders for the rest of the picture. */
  applySampling() {
    this.setSource(this.source.seed, this.source.label);
  }

  /** Return to an earlier source, and move the sliders there. */
  restore(source) {
    this.source = source;
    this.sampling.setFromLink(new Map(Object.entries(source)));
  }

  setSource(seed, label) {
    this.source = { seed, ...samplingFields(this.model, this.values, label) };
  }

  /** The sampling values of the sliders. */
  get values() {
    return this.sampling.values;
  }

  /** True if guidance changes the distributions. */
  get guided() {
    return Boolean(this.source?.label) && this.values.guidance !== 1;
  }
}
