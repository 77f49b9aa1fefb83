/** One image, enlarged: replayed at any speed, saved, or taken further. */

import { encodeDrawing } from "./apng.js";
import { area, save, toPng } from "./pixels.js";
import { Player } from "./player.js";

/** The dialog that opens when an image is clicked. */
export class Viewer {
  /** @param {{inside: Function, complete: Function}} page */
  constructor(page) {
    this.page = page;
    this.dialog = document.getElementById("viewer");
    this.player = new Player(document.getElementById("viewer-canvas"));
    const speed = document.getElementById("viewer-speed");
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    speed.addEventListener("input", () => this.setSpeed());
    on("viewer-replay", () => this.replay());
    on("viewer-png", async () => save(await toPng(this.picture), `${this.name}.png`));
    on("viewer-apng", async () => {
      save(await encodeDrawing(this.picture, this.seconds), `${this.name}-drawing.png`);
    });
    on("viewer-inside", () => {
      this.dialog.close();
      page.inside(this.picture, `Seed ${this.item.result.seed}`, this.item.job.label);
    });
    on("viewer-complete", () => {
      this.dialog.close();
      page.complete(this.picture);
    });
    this.dialog.addEventListener("close", () => this.player.stop());
    this.dialog.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show a tile's finished image. */
  open(item) {
    this.item = item;
    this.picture = item.player.picture;
    const { seed, bits_per_dim: bits } = item.result;
    const { job } = item;
    this.name = `scanline-${job.model.id}-${seed}`;
    document.getElementById("viewer-title").textContent = `Image ${item.index + 1}`;
    document.getElementById("viewer-facts").textContent = [
      `Seed ${seed}`,
      job.label ? `asked for ${job.label}` : null,
      bits === null ? null : `${bits.toFixed(3)} bits/dim`,
      `${job.model.width} × ${job.model.height}, ${job.model.id}`,
    ].filter(Boolean).join(" · ");
    this.player.load(this.picture);
    this.setSpeed();
    if (!this.dialog.open) this.dialog.showModal();
  }

  get seconds() {
    return 2 ** Number(document.getElementById("viewer-speed").value);
  }

  setSpeed() {
    const { seconds } = this;
    const text = seconds < 10 ? seconds.toFixed(1) : String(Math.round(seconds));
    document.getElementById("viewer-seconds").textContent = `${text} s`;
    document.getElementById("viewer-speed").ariaValueText = `${text} seconds`;
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
    const { items } = this.item.sheet;
    const next = items[this.item.index + step];
    if (next?.result) this.open(next);
  }
}
