/** Dialog that shows one image enlarged: replay, save, share, or open it in another view. */

import { toHash } from "./address.js";
import { setRange } from "./fields.js";
import { drawnAs } from "./format.js";
import { Gallery, describeDrawing } from "./gallery.js";
import { downloadBlob, pixelCount, toCanvas, toPng } from "./pixels.js";
import { Player } from "./player.js";
import { embedRecipe } from "./recipe.js";
import { ShareBar, fileName } from "./share.js";

/** Return true if a tile precedes another in the grid. */
const precedes = ({ element }, other) =>
  element.compareDocumentPosition(other.element) & Node.DOCUMENT_POSITION_FOLLOWING;

/** The dialog that opens when an image is clicked. */
export class Viewer {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.dialog = document.getElementById("viewer");
    this.player = new Player(document.getElementById("viewer-canvas"));
    this.gallery = new Gallery(document.getElementById("gallery"));
    this.share = new ShareBar(this.dialog.querySelector("[data-share]"), () =>
      [{ ...this.picture, drawn: this.tile.result.png }]);
    this.speed = document.getElementById("viewer-speed");
    const onClick = (id, act) => document.getElementById(id).addEventListener("click", act);
    this.speed.addEventListener("input", () => this.updateSpeed());
    onClick("viewer-replay", () => this.replay());
    onClick("viewer-png", async () => {
      // Read before encoding, because the viewer may show another image afterwards.
      const { picture, link, tile: { result: { png } } } = this;
      downloadBlob(await embedRecipe(await toPng(picture), png), `${fileName(link)}.png`);
    });
    onClick("viewer-keep", () => {
      this.gallery.toggleKept(this.hash, toCanvas(this.picture), describeDrawing(this.link, this.link.fields.label));
      this.updateKeepButton();
    });
    const addViewButton = (id, name) => onClick(id, async () => {
      const { picture, link, tile: { request: { model } } } = this;
      const { requested } = page;
      this.dialog.close();
      const view = await page.loadView(name);
      const movedOn = page.requested !== requested && page.requested?.view !== name;
      if (!view || movedOn) return;
      if (model !== page.model) page.setModel(model.id); // the image of a comparison, for example
      view.openImage(picture, link);
      document.getElementById(`${name}-title`).focus({ preventScroll: true });
    });
    addViewButton("viewer-inside", "inside");
    addViewButton("viewer-complete", "complete");
    this.others = document.getElementById("viewer-others");
    [-1, 1].forEach((step, i) =>
      this.others.children[i].addEventListener("click", () => this.step(step)));
    this.dialog.addEventListener("close", () => this.player.stop());
    this.dialog.addEventListener("keydown", (event) => this.onKeyDown(event));
  }

  /** Show the finished image of a tile, and let the visitor step through `tiles`. */
  open(tile, tiles) {
    Object.assign(this, { tile, tiles });
    this.picture = tile.player.picture;
    const { seed, bits_per_dim: bits, label } = tile.result;
    const { model, link, title } = tile.request;
    const labelField = label ? { label } : {}; // the seed chose it if the request said "random"
    this.link = { view: link.view, fields: { ...link.fields, n: 1, seed, ...labelField } };
    this.hash = toHash(this.link.view, this.link.fields);
    this.updateKeepButton();
    document.getElementById("viewer-title").textContent = `Image ${tile.index + 1}`;
    document.getElementById("viewer-label").textContent = label ? drawnAs(label) : "";
    document.getElementById("viewer-facts").textContent = [
      [label, model.id].includes(title) ? null : title,
      `Seed ${seed}`,
      bits === null ? null : `${bits.toFixed(3)} bits per value`,
      `${model.width} × ${model.height}, ${model.id}`,
    ].filter(Boolean).join(" · ");
    this.others.hidden = tiles.length < 2;
    document.getElementById("viewer-canvas").ariaLabel =
      `Image ${tile.index + 1}${label ? `, ${drawnAs(label)}` : ""}, enlarged`;
    this.share.setLink(this.link);
    this.player.load(this.picture);
    this.updateSpeed();
    if (!this.dialog.open) this.dialog.showModal();
  }

  updateKeepButton() {
    document.getElementById("viewer-keep").ariaPressed = String(this.gallery.isKept(this.hash));
  }

  /** The duration of the replay. */
  get seconds() {
    return 2 ** Number(this.speed.value);
  }

  updateSpeed() {
    const { seconds } = this;
    const text = seconds < 10 ? seconds.toFixed(1) : String(Math.round(seconds));
    setRange(this.speed, this.speed.value, `${text} s`);
    this.player.rate = pixelCount(this.picture.shape) / seconds;
  }

  replay() {
    this.player.seek(0);
    this.player.play();
  }

  /** Step through the images with the arrow keys, unless a slider has the focus. */
  onKeyDown(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.target.tagName !== "INPUT") this.step(step);
  }

  /** Show the next or previous finished image, in the displayed order, wrapping around. */
  step(step) {
    const finished = this.tiles.filter(({ result }) => result)
      .sort((a, b) => (precedes(a, b) ? -1 : 1));
    this.open(finished.at((finished.indexOf(this.tile) + step) % finished.length), this.tiles);
  }
}
