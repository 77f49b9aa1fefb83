/** What temperature, guidance and top-p make of a distribution, as the decoders do it. */

import { likeliest } from "./format.js";

const normal = (weights) => {
  const total = weights.reduce((sum, p) => sum + p, 0);
  return weights.map((p) => p / total);
};

/** The likeliest values that hold this share. */
function likely(probabilities, share) {
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

/** A distribution from logarithms, at a temperature. */
function heated(logs, temperature) {
  const most = Math.max(...logs);
  return normal(logs.map((log) => Math.exp((log - most) / temperature)));
}

/**
 * Reshape a distribution.
 *
 * @param {number[]} probabilities with the label, if there is one
 * @param {number[] | undefined} unlabelled the same without it, where there is guidance
 * @param {{temperature: number, guidance: number, top_p: number}} dials
 */
export function reshape(probabilities, unlabelled, { temperature, guidance, top_p: topP }) {
  const heat = temperature || 1;
  let logs = probabilities.map((p) => Math.log(Math.max(p, 1e-30)));
  if (unlabelled && guidance !== 1) {
    // Beyond 1, only what is likely with the label is made likelier.
    const cut = guidance > 1 && topP < 1 ? likely(heated(logs, heat), 1 - (1 - topP) / 4) : null;
    logs = logs.map((log, value) => (cut && !cut.has(value) ? -Infinity :
      guidance * log + (1 - guidance) * Math.log(Math.max(unlabelled[value], 1e-30))));
  }
  if (temperature === 0) {
    const best = likeliest(logs);
    return probabilities.map((_, value) => (value === best ? 1 : 0));
  }
  const result = heated(logs, heat);
  if (topP === 1) return result;
  const kept = likely(result, topP);
  return normal(result.map((p, value) => (kept.has(value) ? p : 0)));
}
