/** What can be done with a finished sheet: sorted, shown by cost, saved as a whole. */

import { toHash } from "./address.js";
import { explain, missing, score } from "./api.js";
import { stamp } from "./png.js";
import { mostBits, paintHeat } from "./heatmap.js";
import { area, save, toPng } from "./pixels.js";

const COLUMNS = ["model", "seed", "label", "bits_per_dim", "temperature", "guidance", "top_p", "particles"];
const cost = ({ result }) => result.bits_per_dim ?? Infinity;
const HEAT = "Heat maps";
const quote = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

/** The bar above a sheet. */
export class GridToolbar {
  /** @param {HTMLElement} list the sheet @param {(sentence: string) => void} complain */
  constructor(list, complain) {
    this.list = list;
    const bar = document.createElement("div");
    bar.className = "share grid-toolbar";
    const make = (name, title, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.action = name;
      button.textContent = title;
      button.addEventListener("click", () => Promise.resolve(act(button)).catch((error) =>
        complain(explain(error))));
      bar.append(button);
      return button;
    };
    this.toggles = [
      make("sort", "Sort by bits/dim", (button) => this.sort(press(button))),
      make("heat", HEAT, (button) => this.heat(press(button))),
    ];
    this.toggles[0].title = "Bits/dim: how much the picture surprised the model, see Learn. Less is likelier";
    this.toggles[1].title = "What each pixel cost: bright ones were surprises";
    make("zip", "Save all", async () => save(await this.pack(), "scanline.zip"));
    list.before(bar);
    this.bar = bar;
    this.offer(null);
  }

  /** Offer it for the tiles of a finished sheet; for none, null. */
  offer(tiles) {
    this.tiles = tiles;
    this.bar.hidden = tiles === null;
    for (const button of this.toggles) button.ariaPressed = "false";
    this.toggles[0].hidden = tiles?.length < 2;
    this.list.classList.remove("sorted");
    this.order = [...this.list.children];
  }

  /** Show the likeliest first, all rows as one; or as they were. */
  sort(yes) {
    const { list, tiles, order } = this;
    list.classList.toggle("sorted", yes);
    if (!yes) list.append(...order);
    else list.append(...tiles.toSorted((a, b) => cost(a) - cost(b)).map(({ element }) => element));
  }

  /** Paint over every image what each of its pixels cost, all on one scale. */
  async heat(yes) {
    const { list, tiles } = this;
    list.querySelectorAll(".heat").forEach((canvas) => canvas.remove());
    if (!yes) return;
    const [, button] = this.toggles;
    button.textContent = "Measuring …";
    try {
      await this.measure(tiles);
    } catch (error) {
      if (this.tiles !== tiles) return; // they are gone
      button.ariaPressed = "false";
      throw error;
    } finally {
      button.textContent = HEAT;
    }
    if (this.tiles !== tiles || button.ariaPressed === "false") return;
    const most = Math.max(...tiles.map(({ bits }) => mostBits(bits)));
    for (const { button: over, bits, part: { model } } of tiles) {
      const canvas = document.createElement("canvas");
      canvas.className = "heat";
      [canvas.width, canvas.height] = [model.width, model.height];
      paintHeat(canvas, bits, area(model), false, most);
      over.append(canvas);
    }
  }

  /** Have every image measured that was not yet. */
  async measure(tiles) {
    const groups = Map.groupBy(tiles, ({ part, result }) => `${part.model.id}/${result.label}`);
    await Promise.all([...groups.values()].map(async (group) => {
      const [{ part: { model }, result: { label } }] = group;
      for (let from = 0; from < group.length; from += 64) {
        const some = group.slice(from, from + 64).filter((tile) => !tile.bits);
        if (!some.length) continue;
        const pngs = await Promise.all(some.map(({ player }) => toPng(player.picture)));
        const data = await score(model, pngs, label);
        some.forEach((tile, k) => { tile.bits = data[k].pixel_bits; });
      }
    }));
  }

  /** Put all images into one file, with a table of what made them. */
  async pack() {
    const rows = [["file", ...COLUMNS].join(",")];
    const files = await Promise.all(this.tiles.map(async ({ index, part, player, result }) => {
      const { seed, label } = result;
      const name = `${String(index).padStart(4, "0")}-seed-${seed}.png`;
      const facts = { ...part.fields, ...result };
      rows[index + 1] = [name, ...COLUMNS.map((column) => facts[column] ?? "")]
        .map((cell) => quote(String(cell))).join(",");
      const fields = { ...part.link.fields, n: 1, seed, ...(label ? { label } : {}) };
      return [name, await stamp(await toPng(player.picture), toHash(part.link.view, fields))];
    }));
    const { zip } = await import("./zip.js").catch(missing);
    return zip([...files, ["images.csv", new Blob([`${rows.join("\r\n")}\r\n`])]]);
  }
}

/** Turn a button on or off; tells which. */
function press(button) {
  button.ariaPressed = String(button.ariaPressed !== "true");
  return button.ariaPressed === "true";
}
