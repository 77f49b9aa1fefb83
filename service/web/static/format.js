/** Numbers, colours and chances in words. */

/** Write a number without what is behind its point. */
export const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Name the channels of a model. */
export const channelsOf = ({ channels }) => (channels === 3 ? ["Red", "Green", "Blue"] : ["Brightness"]);

const GREYS = [[16, "black"], [96, "dark grey"], [160, "grey"], [240, "light grey"], [256, "white"]];
const HUES = [
  [15, "red"], [45, "orange"], [70, "yellow"], [165, "green"], [200, "cyan"], [255, "blue"],
  [290, "purple"], [345, "pink"], [361, "red"],
];

/** Name a pixel: one brightness, or red, green and blue. */
export function nameOf(values) {
  const [r, g = r, b = r] = values;
  const [most, least] = [Math.max(r, g, b), Math.min(r, g, b)];
  const chroma = most - least;
  if (chroma < 28) return GREYS.find(([end]) => (r + g + b) / 3 < end)[1];
  let turn = (r - g) / chroma + 4;
  if (most === r) turn = ((g - b) / chroma + 6) % 6;
  else if (most === g) turn = (b - r) / chroma + 2;
  const [, name] = HUES.find(([end]) => 60 * turn < end);
  const light = (most + least) / 2;
  if (name === "orange" && (light < 110 || chroma < 100)) {
    return light < 50 ? "dark brown" : light < 170 ? "brown" : "beige";
  }
  const tone = light < 70 ? "dark " : light > 190 ? "light " : chroma < 60 ? "greyish " : "";
  return tone + name;
}

/** Write a probability as a percentage of two digits or so. */
export function percent(p) {
  if (p < 0.0001) return "below 0.01 %";
  return p >= 0.1 ? `${Math.round(p * 100)} %` : `${(p * 100).toPrecision(2)} %`;
}

/** Give what a value of this probability costs. */
export const bitsOf = (p) => -Math.log2(p);

/** Write a cost; of what is likely to less than a number can say, that it is large. */
export const cost = (bits) => (Number.isFinite(bits) ? `${bits.toFixed(1)} bits` : "over 100 bits");

/** Give the place of the largest number. */
export const likeliest = (probabilities) => probabilities.indexOf(Math.max(...probabilities));

/** Say in one sentence what was expected of a pixel, and what came; null where nothing came yet. */
export function verdict(expected, actual, bits) {
  const name = nameOf(expected);
  if (actual === null) return `Expects ${name} next.`;
  if (expected.every((value, c) => value === actual[c])) {
    return `${name.charAt(0).toUpperCase()}${name.slice(1)}, as expected: ${cost(bits)}.`;
  }
  const got = nameOf(actual);
  if (got !== name) return `Expected ${name}, got ${got}: ${cost(bits)}.`;
  return expected.length === 1
    ? `Expected ${name} ${expected[0]}, got ${name} ${actual[0]}: ${cost(bits)}.`
    : `Expected ${name}, got another ${name}: ${cost(bits)}.`;
}
