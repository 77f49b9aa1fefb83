/** One image, enlarged: replayed at any speed, saved, shared, or taken further. */

import { encodeDrawing } from "./apng.js";
import { setRange } from "./fields.js";
import { area, save, toPng } from "./pixels.js";
import { Player } from "./player.js";
import { ShareBar } from "./share.js";

/** The dialog that opens when an image is clicked. */
export class Viewer {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.dialog = document.getElementById("viewer");
    this.player = new Player(document.getElementById("viewer-canvas"));
    this.share = new ShareBar(this.dialog.querySelector("[data-share]"));
    this.speed = document.getElementById("viewer-speed");
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    this.speed.addEventListener("input", () => this.setSpeed());
    on("viewer-replay", () => this.replay());
    on("viewer-png", async () => save(await toPng(this.picture), `${this.name}.png`));
    on("viewer-apng", async () => {
      save(await encodeDrawing(this.picture, this.seconds), `${this.name}-drawing.png`);
    });
    on("viewer-inside", () => {
      this.dialog.close();
      page.views.inside.take(this.picture, this.link);
    });
    on("viewer-complete", () => {
      this.dialog.close();
      page.views.complete.take(this.picture);
    });
    this.dialog.addEventListener("close", () => this.player.stop());
    this.dialog.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show a tile's finished image, one of several. */
  open(tile, tiles) {
    Object.assign(this, { tile, tiles });
    this.picture = tile.player.picture;
    const { seed, bits_per_dim: bits, label } = tile.result;
    const { model, link } = tile.part;
    const chosen = label ? { label } : {}; // of its own, where the seeds chose the classes
    this.link = { view: link.view, fields: { ...link.fields, n: 1, seed, ...chosen } };
    this.name = `scanline-${model.id}-${seed}`;
    document.getElementById("viewer-title").textContent = `Image ${tile.index + 1}`;
    document.getElementById("viewer-facts").textContent = [
      `Seed ${seed}`,
      label ? `asked for ${label}` : null,
      bits === null ? null : `${bits.toFixed(3)} bits/dim`,
      `${model.width} × ${model.height}, ${model.id}`,
    ].filter(Boolean).join(" · ");
    this.share.offer(this.link);
    this.player.load(this.picture);
    this.setSpeed();
    if (!this.dialog.open) this.dialog.showModal();
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
    if (!step || event.target.tagName === "INPUT") return;
    const next = this.tiles[this.tile.index + step];
    if (next?.result) this.open(next, this.tiles);
  }
}
