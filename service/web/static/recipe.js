/** Recipes in PNG files: the request fields that draw a picture again (docs/api.md). */

import { HEADER_END, chunk, readChunks } from "./png.js";
import { SAMPLING } from "./sampling-controls.js";

const KEYWORD = "scanline\0";
/** Names in the recipe of a sample; a link draws it if there are no others. */
const KNOWN_FIELDS = new Set([
  "format", "model", "weights", "precision", "arithmetic", "seed", "n", "label", ...SAMPLING,
  "particles", "given", "scale", "version",
]);
const toBytes = (latin1) => Uint8Array.from(latin1, (c) => c.charCodeAt(0));
const toLatin1 = (bytes) => new TextDecoder("latin1").decode(bytes);

/**
 * Return the chunks of the recipe in a PNG of the server, none if it has none.
 *
 * @param {string} drawn the server's PNG, in base64
 * @param {number} scale enlargement of the file that the chunks are for
 */
function recipeChunks(drawn, scale) {
  return [...readChunks(toBytes(atob(drawn)))]
    .filter(({ name }) => name === "tEXt" || name === "iTXt")
    .map(({ name, data }) => {
      const text = toLatin1(data);
      // Not by JSON.parse, which would round a seed above 2⁵³.
      return chunk(name, text.startsWith(KEYWORD)
        ? toBytes(text.replace('"scale":1,', `"scale":${scale},`)) : data);
    });
}

/**
 * Return the chunks of the recipe of a grid of pictures, from the server's PNG of each. None if the
 * pictures are not what one request draws: images with consecutive seeds.
 */
function gridChunks(drawn, scale) {
  const texts = drawn.map((png) => [...readChunks(toBytes(atob(png)))].map(({ data }) => toLatin1(data))
    .find((text) => text.startsWith(KEYWORD)));
  const recipes = texts.map((text) => parseRecipe(text?.slice(KEYWORD.length)));
  const [first] = recipes;
  if (!first) return [];
  const follows = (recipe, k) => recipe && Number.isSafeInteger(recipe.seed) && JSON.stringify(
    { ...recipe, seed: recipe.seed - k, label: first.label }) === JSON.stringify(first);
  if (!recipes.every(follows)) return [];
  const label = recipes.every((recipe) => recipe.label === first.label) ? first.label : "random";
  const grid = JSON.stringify({ ...first, label, n: drawn.length, scale })
    .replace(/[^\x00-\x7f]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return [chunk("tEXt", toBytes(KEYWORD + grid))];
}

/**
 * Return a PNG of this page with the recipe of the server's PNG added.
 *
 * @param {Blob} png
 * @param {string | string[]} drawn the server's PNG in base64; several for a grid of pictures
 * @param {number} scale enlargement of `png`
 */
export async function embedRecipe(png, drawn, scale = 1) {
  const bytes = new Uint8Array(await png.arrayBuffer());
  const [one, ...others] = [drawn].flat();
  const chunks = others.length ? gridChunks(drawn, scale) : recipeChunks(one, scale);
  const parts = [bytes.subarray(0, HEADER_END), ...chunks, bytes.subarray(HEADER_END)];
  return new Blob(parts, { type: "image/png" });
}

/** Return the recipe in a file, or null if there is none that this page knows. */
export async function readRecipe(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  for (const { name, data } of readChunks(bytes)) {
    const text = name === "tEXt" ? toLatin1(data) : "";
    if (text.startsWith(KEYWORD)) return parseRecipe(text.slice(KEYWORD.length));
  }
  return null;
}

function parseRecipe(text) {
  try {
    const recipe = JSON.parse(text);
    return recipe?.format === 1 ? recipe : null;
  } catch {
    return null;
  }
}

/** Return the fields of the link that draws a recipe; null if no link can. */
export function linkFields(recipe) {
  const { seed, label, given } = recipe;
  const known = Object.keys(recipe).every((name) => KNOWN_FIELDS.has(name));
  if (!known || given || !Number.isSafeInteger(seed)) return null;
  const needsLabel = ["label", "guidance"];
  const names = ["model", "n", "seed", ...SAMPLING, "label"]
    .filter((name) => name in recipe && (label !== null || !needsLabel.includes(name)));
  return Object.fromEntries(names.map((name) => [name, recipe[name]]));
}
