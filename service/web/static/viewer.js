/** One image, enlarged: replayed at any speed, saved, shared, or taken further. */

import { toHash } from "./address.js";
import { explain, missing } from "./api.js";
import { stamp } from "./png.js";
import { setRange } from "./fields.js";
import { Gallery, titleOf } from "./gallery.js";
import { area, save, toCanvas, toPng } from "./pixels.js";
import { Player } from "./player.js";
import { ShareBar } from "./share.js";

const ENLARGED = 20;

/** Whether a tile comes before another on the sheet. */
const precedes = ({ element }, other) =>
  element.compareDocumentPosition(other.element) & Node.DOCUMENT_POSITION_FOLLOWING;

/** The dialog that opens when an image is clicked. */
export class Viewer {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.dialog = document.getElementById("viewer");
    this.player = new Player(document.getElementById("viewer-canvas"));
    this.gallery = new Gallery(document.getElementById("gallery"));
    this.share = new ShareBar(this.dialog.querySelector("[data-share]"));
    this.speed = document.getElementById("viewer-speed");
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    this.speed.addEventListener("input", () => this.setSpeed());
    on("viewer-replay", () => this.replay());
    // The picture and its name are read at the click: another may be shown before it is encoded.
    const saves = (id, suffix, encode) => on(id, () => {
      const { picture, seconds, hash, name } = this;
      encode(picture, seconds, hash).then((blob) => save(blob, `${name}${suffix}`))
        .catch((error) => this.share.say(explain(error)));
    });
    saves("viewer-png", ".png", async (picture, _, hash) => stamp(await toPng(picture), hash));
    saves("viewer-large", "-large.png", async (picture, _, hash) =>
      stamp(await toPng(picture, undefined, ENLARGED), hash));
    saves("viewer-apng", "-drawing.png", async (...what) =>
      (await import("./apng.js").catch(missing)).encodeDrawing(...what));
    saves("viewer-gif", ".gif", async (picture, seconds) =>
      (await import("./gif.js").catch(missing)).encodeGif(picture, seconds));
    on("viewer-keep", () => {
      this.gallery.keep(this.hash, toCanvas(this.picture), titleOf(this.link.fields));
      this.tellKept();
    });
    const takes = (id, name) => on(id, async () => {
      const { picture, link, tile: { part: { model } } } = this;
      const { wanted } = page;
      this.dialog.close();
      const view = await page.come(name);
      const elsewhere = page.wanted !== wanted && page.wanted?.view !== name; // they went meanwhile
      if (!view || elsewhere) return;
      if (model !== page.model) page.use(model.id); // of a comparison, or chosen meanwhile
      view.take(picture, link);
      document.getElementById(`${name}-title`).focus({ preventScroll: true });
    });
    takes("viewer-inside", "inside");
    takes("viewer-complete", "complete");
    this.others = document.getElementById("viewer-others");
    [-1, 1].forEach((step, i) =>
      this.others.children[i].addEventListener("click", () => this.step(step)));
    this.dialog.addEventListener("close", () => this.player.stop());
    this.dialog.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show a tile's finished image, one of several. */
  open(tile, tiles) {
    Object.assign(this, { tile, tiles });
    this.picture = tile.player.picture;
    const { seed, bits_per_dim: bits, label } = tile.result;
    const { model, link, title } = tile.part;
    const chosen = label ? { label } : {}; // of its own, where the seeds chose the classes
    this.link = { view: link.view, fields: { ...link.fields, n: 1, seed, ...chosen } };
    this.hash = toHash(this.link.view, this.link.fields);
    this.tellKept();
    this.name = `scanline-${model.id}-${seed}`;
    document.getElementById("viewer-title").textContent = `Image ${tile.index + 1}`;
    document.getElementById("viewer-facts").textContent = [
      [label, model.id].includes(title) ? null : title,
      `Seed ${seed}`,
      label ? `asked for ${label}` : null,
      bits === null ? null : `${bits.toFixed(3)} bits/dim`,
      `${model.width} × ${model.height}, ${model.id}`,
    ].filter(Boolean).join(" · ");
    this.others.hidden = tiles.length < 2;
    this.share.offer(this.link);
    this.player.load(this.picture);
    this.setSpeed();
    if (!this.dialog.open) this.dialog.showModal();
  }

  tellKept() {
    document.getElementById("viewer-keep").ariaPressed = String(this.gallery.keeps(this.hash));
  }

  get seconds() {
    return 2 ** Number(this.speed.value);
  }

  setSpeed() {
    const { seconds } = this;
    const text = seconds < 10 ? seconds.toFixed(1) : String(Math.round(seconds));
    setRange(this.speed, this.speed.value, `${text} s`);
    this.player.rate = area(this.picture.shape) / seconds;
  }

  replay() {
    this.player.seek(0);
    this.player.play();
  }

  /** Arrow keys step through the sheet, unless a slider has the focus. */
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.target.tagName !== "INPUT") this.step(step);
  }

  /** Show the next finished image on the sheet, or the one before: behind the last the first. */
  step(step) {
    const shown = this.tiles.filter(({ result }) => result)
      .sort((a, b) => (precedes(a, b) ? -1 : 1)); // it may be sorted
    this.open(shown.at((shown.indexOf(this.tile) + step) % shown.length), this.tiles);
  }
}
