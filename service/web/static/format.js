/** Formatting of numbers, colours and probabilities as text. */

export const integerFormat = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Return the names of a model's channels. */
export const channelNames = ({ channels }) =>
  (channels === 3 ? ["Red", "Green", "Blue"] : ["Brightness"]);

const GREYS = [[16, "black"], [96, "dark grey"], [160, "grey"], [240, "light grey"], [256, "white"]];
const HUES = [
  [15, "red"], [45, "orange"], [70, "yellow"], [165, "green"], [200, "cyan"], [255, "blue"],
  [290, "purple"], [345, "pink"], [361, "red"],
];

/** Return the English name of a colour: one grey value, or red, green and blue. */
export function colourName(values) {
  const [r, g = r, b = r] = values;
  const [max, min] = [Math.max(r, g, b), Math.min(r, g, b)];
  const chroma = max - min;
  if (chroma < 28) return GREYS.find(([end]) => (r + g + b) / 3 < end)[1];
  let sixth = (r - g) / chroma + 4; // hue in units of 60 degrees
  if (max === r) sixth = ((g - b) / chroma + 6) % 6;
  else if (max === g) sixth = (b - r) / chroma + 2;
  const [, name] = HUES.find(([end]) => 60 * sixth < end);
  const lightness = (max + min) / 2;
  if (name === "orange" && (lightness < 110 || chroma < 100)) {
    return lightness < 50 ? "dark brown" : lightness < 170 ? "brown" : "beige";
  }
  const tone = lightness < 70 ? "dark " : lightness > 190 ? "light " : chroma < 60 ? "greyish " : "";
  return tone + name;
}

/** Format a probability as a percentage with about two digits, which stays on one line. */
export function formatPercent(p) {
  if (p < 0.0001) return "under 0.01\u00a0%";
  return `${p >= 0.1 ? Math.round(p * 100) : (p * 100).toPrecision(2)}\u00a0%`;
}

/** Return the cost in bits of an outcome with this probability. */
export const toBits = (p) => -Math.log2(p);

/** Format a number of bits. A probability that underflowed to 0 gives "over 100 bits". */
export const formatBits = (bits) =>
  (Number.isFinite(bits) ? `${bits.toFixed(1)} bits` : "over 100 bits");

/** Return the index of the largest number. */
export const argmax = (numbers) => numbers.indexOf(Math.max(...numbers));

/** Describe in one sentence the expected and the actual colour of a pixel. */
export function describeSurprise(expected, actual, bits) {
  const name = colourName(expected);
  if (actual === null) return `Expects ${name} next.`;
  if (expected.every((value, c) => value === actual[c])) {
    return `${name.charAt(0).toUpperCase()}${name.slice(1)}, as expected: ${formatBits(bits)}.`;
  }
  const actualName = colourName(actual);
  if (actualName !== name) return `Expected ${name}, got ${actualName}: ${formatBits(bits)}.`;
  const exact = expected.length === 1 ? ` (${actual[0]}, not ${expected[0]})` : "";
  return `Almost as expected, another shade of ${name}${exact}: ${formatBits(bits)}.`;
}

/** Describe the most likely value of the next pixel from the probabilities of each channel. */
export function describeNext(distributions) {
  const best = distributions.map(argmax);
  const detail = best.length === 1 ? ` (${best[0]}, ${formatPercent(distributions[0][best[0]])})` : "";
  return `Next: ${colourName(best)} is likeliest${detail}.`;
}

/** Describe the values that were rolled for a pixel, and the chance of each. */
export function describeRoll(values, chances) {
  if (values.length === 1) {
    return `${values[0]}, ${colourName(values)}: a chance of ${formatPercent(chances[0])}`;
  }
  const parts = ["red", "green", "blue"].map((name, c) => `${name} ${values[c]} (${formatPercent(chances[c])})`);
  return `${parts.join(", ")}: ${colourName(values)}`;
}

/** Return "drawn as an 8", with the article of the class unless it has its own. */
export function drawnAs(label) {
  if (/^(an?|the) /i.test(label)) return `drawn as ${label}`;
  return `drawn as ${/^(8|1[18]$|[aei]|o(?!ne$))/i.test(label) ? "an" : "a"} ${label}`;
}
