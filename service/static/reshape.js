/** What temperature, guidance and top-p make of a distribution, as the decoders do it. */

import { likeliest } from "./words.js";

const normal = (weights) => {
  const total = weights.reduce((sum, p) => sum + p, 0);
  return weights.map((p) => p / total);
};

/** Keep the likeliest values that hold this share. */
function keep(probabilities, share) {
  let before = 0;
  const kept = new Set();
  const order = Array.from(probabilities, (_, value) => value)
    .sort((a, b) => probabilities[b] - probabilities[a]);
  for (const value of order) {
    if (before >= share) break;
    kept.add(value);
    before += probabilities[value];
  }
  return normal(probabilities.map((p, value) => (kept.has(value) ? p : 0)));
}

/**
 * Reshape a distribution.
 *
 * @param {number[]} probabilities with the label, if there is one
 * @param {number[] | undefined} unlabelled the same without it, where there is guidance
 * @param {{temperature: number, guidance: number, top_p: number}} dials
 */
export function reshape(probabilities, unlabelled, { temperature, guidance, top_p: topP }) {
  let logs = probabilities.map((p) => Math.log(Math.max(p, 1e-30)));
  if (unlabelled && guidance !== 1) {
    logs = logs.map((log, value) =>
      guidance * log + (1 - guidance) * Math.log(Math.max(unlabelled[value], 1e-30)));
  }
  if (temperature === 0) {
    const best = likeliest(logs);
    return probabilities.map((_, value) => (value === best ? 1 : 0));
  }
  const most = Math.max(...logs);
  const heated = normal(logs.map((log) => Math.exp((log - most) / temperature)));
  return topP === 1 ? heated : keep(heated, topP);
}
