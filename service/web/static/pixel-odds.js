/** A picture that the server has drawn, with the bits and the distributions of its pixels. */

import { drawPicture, fetchDistributions, postImages, readJson, scoreImages, withRetries } from "./api.js";
import { mostSurprising } from "./heatmap.js";
import { pixelCount, toPng } from "./pixels.js";

const CERTAIN_BITS = 0.15; // a pixel that costs fewer bits than this is nearly certain

/**
 * Let the server draw a picture from pixel `from` on, and measure it.
 *
 * @param {object} model
 * @param {object} source request fields: seed and sampling values
 * @param {import("./pixels.js").Picture} before the picture whose pixels before `from` are kept
 * @param {number} from
 * @param {AbortSignal} signal
 * @param {(text: string) => void} onStatus
 */
export async function drawWithOdds(model, source, before, from, signal, onStatus) {
  let picture = before;
  if (from === 0) picture = await drawPicture(model, source, signal, onStatus);
  else if (from < pixelCount(model)) {
    picture = await drawRest(model, source, before, from, signal, onStatus);
  }
  const [{ pixel_bits: bits }] =
    await scoreImages(model, await toPng(picture), source.label, signal, onStatus);
  signal.throwIfAborted();
  return new PixelOdds(model, picture, bits, source, signal, onStatus);
}

/** Return a picture with all pixels from `from` on drawn again. */
async function drawRest(model, source, before, from, signal, onStatus) {
  const png = await toPng(before, (p) => p < from);
  const fields = { model: model.id, output: "values", ...source };
  const response = await withRetries(
    () => postImages("v1/completions", fields, png, signal), signal, { onStatus });
  const { images: [{ values }] } = await readJson(response);
  return { shape: model, values: Uint8Array.from(values), known: null };
}

/** Caches the distributions of a picture whose values do not change. */
class PixelOdds {
  /**
   * @param {object} model
   * @param {import("./pixels.js").Picture} picture
   * @param {number[]} bits of each pixel
   * @param {object} source request fields that the picture, or its last pixels, were drawn with
   * @param {AbortSignal} signal
   * @param {(text: string) => void} onStatus
   */
  constructor(model, picture, bits, source, signal, onStatus) {
    Object.assign(this, { model, picture, bits, source, signal, onStatus });
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

  /** Return the values of pixel `p`. */
  valuesAt(p) {
    const { channels } = this.model;
    return this.values.slice(p * channels, (p + 1) * channels);
  }

  isCertain(p) {
    return this.bits[p] < CERTAIN_BITS;
  }

  /** Return the pixel of the upper half that surprised the model most. */
  mostUncertainPixel() {
    return mostSurprising(this.bits.slice(0, Math.ceil(this.bits.length / 2)), 1)[0];
  }

  /** Fetch the distributions of the next pixels from `from` on that are not certain. */
  prefetch(from, guided) {
    let left = this.model.channels > 1 ? 1 : 3; // a colour pixel needs three distributions, or six
    for (let p = from; p < this.bits.length && left; p += 1) {
      if (this.isCertain(p)) continue;
      this.fetch(p, guided).catch(() => {}); // reported when it is shown
      left -= 1;
    }
  }

  fetchNow(p, guided) {
    const { model, source: { label }, signal, onStatus } = this;
    const values = this.values.slice(0, (p + 1) * model.channels - 1);
    return fetchDistributions(model, values, label, guided, signal, { onStatus });
  }
}
