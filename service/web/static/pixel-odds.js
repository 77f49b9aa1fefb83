/** Distributions of the pixels of one picture, fetched once each. */

import { postJson, withRetries } from "./api.js";

/** Caches the distributions of a picture whose values do not change. */
export class PixelOdds {
  /**
   * @param {object} model
   * @param {import("./pixels.js").Picture} picture
   * @param {string | undefined} label the class that the picture was drawn as
   * @param {AbortSignal} signal
   * @param {(text: string) => void} onStatus
   */
  constructor(model, picture, label, signal, onStatus) {
    Object.assign(this, { model, label, signal, onStatus });
    this.values = Array.from(picture.values);
    this.cache = new Map();
  }

  /**
   * Return the probabilities of each channel's 256 values, given the pixels and channels before.
   *
   * @param {number} p the pixel
   * @param {boolean} guided also without the class, which guidance needs
   * @returns {Promise<{conditional: number[][], unconditional: number[][] | null}>}
   */
  fetch(p, guided) {
    const key = `${p} ${guided}`;
    if (!this.cache.has(key)) {
      const answer = this.fetchNow(p, guided);
      answer.catch(() => this.cache.delete(key)); // so that another try asks again
      this.cache.set(key, answer);
    }
    return this.cache.get(key);
  }

  async fetchNow(p, guided) {
    const labelField = this.label ? { label: this.label } : {};
    const [conditional, unconditional] = await Promise.all([
      this.fetchChannels(p, labelField), guided ? this.fetchChannels(p, {}) : null]);
    return { conditional, unconditional };
  }

  fetchChannels(p, labelField) {
    const { model, signal, onStatus } = this;
    return Promise.all(Array.from({ length: model.channels }, async (_, c) => {
      const values = this.values.slice(0, p * model.channels + c);
      const reply = await withRetries(() =>
        postJson("v1/distribution", { model: model.id, values, ...labelField }, signal),
      signal, { onStatus });
      return reply.probabilities;
    }));
  }
}
