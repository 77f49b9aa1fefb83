/** Actions on a finished image grid: sort, show heat maps, save all images. */

import { describeError, scoreImages, throwLoadError } from "./api.js";
import { paintHeatmap, scaleBits } from "./heatmap.js";
import { downloadBlob, pixelCount, toPng } from "./pixels.js";
import { embedRecipe } from "./recipe.js";
import { SAMPLING } from "./sampling-controls.js";

const COLUMNS = ["model", "seed", "label", "bits_per_dim", ...SAMPLING, "particles"];
const MAX_SCORED = 64; // pictures per request, if the server allows as many
const HEATMAPS = "Heat maps";
const EXPLANATIONS = {
  details: "The seed of each picture, and its bits per value: how much it surprised the model.",
  sort: "Sorted by bits per value: the picture that surprised the model least comes first.",
  heat: "Bright pixels surprised the model: they cost more bits.",
};
const bitsPerDim = ({ result }) => result.bits_per_dim ?? Infinity;
const csvQuote = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

/** The toolbar below a grid. */
export class GridToolbar {
  /**
   * @param {HTMLElement} list of the tiles
   * @param {number} maxImages the server's limit per request
   * @param {(text: string | null) => void} onError
   */
  constructor(list, maxImages, onError) {
    this.list = list;
    this.maxScored = Math.min(MAX_SCORED, maxImages);
    const bar = document.createElement("div");
    bar.className = "share grid-toolbar";
    const createButton = (name, title, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.action = name;
      button.textContent = title;
      button.addEventListener("click", () => {
        onError(null); // clears an earlier failure
        this.hint.textContent = "";
        Promise.resolve(act(button)).catch((error) => onError(describeError(error)));
      });
      bar.append(button);
      return button;
    };
    this.details = createButton("details", "Details", (button) =>
      list.classList.toggle("detailed", this.toggle(button)));
    this.details.ariaPressed = "false";
    this.toggles = [
      createButton("sort", "Likeliest first", (button) => this.sort(this.toggle(button))),
      createButton("heat", HEATMAPS, (button) => this.showHeatmaps(this.toggle(button))),
    ];
    createButton("zip", "Save all", async () => downloadBlob(await this.createArchive(), "scanline.zip"));
    this.hint = document.createElement("p");
    this.hint.className = "hint";
    this.hint.ariaLive = "polite";
    bar.append(this.hint);
    list.after(bar); // below, so that the pictures do not move when it appears
    this.bar = bar;
    this.setTiles(null);
  }

  /** Set the tiles of a finished grid; null hides the toolbar. */
  setTiles(tiles) {
    this.tiles = tiles;
    this.hint.textContent = "";
    this.bar.hidden = tiles === null;
    for (const button of this.toggles) button.ariaPressed = "false";
    this.toggles[0].hidden = tiles?.length < 2;
    this.list.classList.remove("sorted");
    this.order = [...this.list.children];
  }

  /** Toggle a button, and explain what it shows; return true if it is pressed now. */
  toggle(button) {
    const pressed = button.ariaPressed !== "true";
    button.ariaPressed = String(pressed);
    this.hint.textContent = pressed ? EXPLANATIONS[button.dataset.action] : "";
    return pressed;
  }

  /** Sort all tiles by bits per value, without rows, or restore the original order. */
  sort(sorted) {
    const { list, tiles, order } = this;
    list.classList.toggle("sorted", sorted);
    if (!sorted) {
      list.append(...order);
      return;
    }
    const byCost = tiles.toSorted((a, b) => bitsPerDim(a) - bitsPerDim(b));
    list.append(...byCost.map(({ element }) => element));
  }

  /** Cover every image with its heat map, all with the same scale, or remove the heat maps. */
  async showHeatmaps(shown) {
    const { list, tiles } = this;
    const [, button] = this.toggles;
    if (shown) {
      button.textContent = "Measuring …";
      try {
        await this.measure(tiles);
      } catch (error) {
        if (this.tiles !== tiles) return; // the grid shows other images by now
        button.ariaPressed = "false";
        this.hint.textContent = "";
        throw error;
      } finally {
        button.textContent = HEATMAPS;
      }
    }
    if (this.tiles !== tiles) return;
    list.querySelectorAll(".heatmap").forEach((canvas) => canvas.remove());
    if (button.ariaPressed === "false") return; // meanwhile, or by this click
    const max = Math.max(...tiles.map(({ bits }) => scaleBits(bits)));
    for (const { button: imageButton, bits, request: { model } } of tiles) {
      const canvas = document.createElement("canvas");
      canvas.className = "heatmap";
      [canvas.width, canvas.height] = [model.width, model.height];
      paintHeatmap(canvas, bits, pixelCount(model), false, max);
      imageButton.append(canvas);
    }
  }

  /** Fetch the bits of every image that has none yet. */
  async measure(tiles) {
    const groups = Map.groupBy(tiles, ({ request, result }) => `${request.model.id}/${result.label}`);
    await Promise.all([...groups.values()].map(async (group) => {
      const [{ request: { model }, result: { label } }] = group;
      for (let from = 0; from < group.length; from += this.maxScored) {
        const batch = group.slice(from, from + this.maxScored).filter((tile) => !tile.bits);
        if (!batch.length) continue;
        const pngs = await Promise.all(batch.map(({ player }) => toPng(player.picture)));
        const data = await scoreImages(model, pngs, label);
        batch.forEach((tile, k) => { tile.bits = data[k].pixel_bits; });
      }
    }));
  }

  /** Create a ZIP archive of all images, with a CSV table of their request fields and results. */
  async createArchive() {
    const rows = [["file", ...COLUMNS].join(",")];
    const files = await Promise.all(this.tiles.map(async ({ index, request, player, result }) => {
      const { seed } = result;
      const name = `${String(index).padStart(4, "0")}-seed-${seed}.png`;
      const values = { ...request.fields, ...result };
      rows[index + 1] = [name, ...COLUMNS.map((column) => values[column] ?? "")]
        .map((cell) => csvQuote(String(cell))).join(",");
      return [name, await embedRecipe(await toPng(player.picture), result.png)];
    }));
    const { createZip } = await import("./zip.js").catch(throwLoadError);
    return createZip([...files, ["images.csv", new Blob([`${rows.join("\r\n")}\r\n`])]]);
  }
}
