/** Effect of temperature, guidance and top-p on a distribution, computed as the decoders do. */

import { argmax } from "./format.js";

const normalize = (weights) => {
  const total = weights.reduce((sum, p) => sum + p, 0);
  return weights.map((p) => p / total);
};

/** Return the smallest set of most likely values with at least this total probability. */
function nucleus(probabilities, share) {
  let before = 0;
  const kept = new Set();
  const order = Array.from(probabilities, (_, value) => value)
    .sort((a, b) => probabilities[b] - probabilities[a]);
  for (const value of order) {
    if (before >= share) break;
    kept.add(value);
    before += probabilities[value];
  }
  return kept;
}

/** Return the softmax of log probabilities at a temperature. */
function softmax(logs, temperature) {
  const max = Math.max(...logs);
  return normalize(logs.map((log) => Math.exp((log - max) / temperature)));
}

/**
 * Apply the sampling parameters to a distribution.
 *
 * @param {number[]} probabilities given the label, if there is one
 * @param {number[] | undefined} unconditional the distribution without the label, for guidance
 * @param {{temperature: number, guidance: number, top_p: number}} parameters
 */
export function applySampling(probabilities, unconditional, parameters) {
  const { temperature, guidance, top_p: topP } = parameters;
  const divisor = temperature || 1;
  let logs = probabilities.map((p) => Math.log(Math.max(p, 1e-30)));
  if (unconditional && guidance !== 1) {
    // Guidance above 1 amplifies only values that are likely given the label.
    const allowed = guidance > 1 && topP < 1
      ? nucleus(softmax(logs, divisor), 1 - (1 - topP) / 4) : null;
    logs = logs.map((log, value) => (allowed && !allowed.has(value) ? -Infinity :
      guidance * log + (1 - guidance) * Math.log(Math.max(unconditional[value], 1e-30))));
  }
  if (temperature === 0) {
    const best = argmax(logs);
    return probabilities.map((_, value) => (value === best ? 1 : 0));
  }
  const result = softmax(logs, divisor);
  if (topP === 1) return result;
  const kept = nucleus(result, topP);
  return normalize(result.map((p, value) => (kept.has(value) ? p : 0)));
}
