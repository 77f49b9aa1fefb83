/** Dialog that checks a saved picture: the server draws it again and compares every pixel. */

import { toHash } from "./address.js";
import { describeError, postImages, readJson, withRetries } from "./api.js";
import { linkFields } from "./recipe.js";

const countPixels = (n) => `${n.toLocaleString("en")} ${n === 1 ? "pixel differs" : "pixels differ"}`;

const VERDICTS = {
  same: () => "Same picture, to the pixel.",
  edited: (n) => (n === 0 ? "The margin of this picture was changed."
    : `This picture was changed: ${countPixels(n)}, shown in red.`),
  other_arithmetic: (n) => `${countPixels(n)}, shown in red. Either the picture was changed, or it was `
    + "drawn on another kind of computer, which rounds differently.",
  other_weights: () => "Another model drew this picture, so it cannot be checked here.",
  resized: () => "This picture was resized or cropped after it was saved.",
  source_missing: () => "This picture is a completion. It can only be checked together with the "
    + "picture that was completed.",
  other_source: () => "This picture is a completion of another picture.",
  no_recipe: () => "This file does not say how it was drawn.",
};

/** The dialog. */
export class VerifyDialog {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    const byId = (name) => document.getElementById(name);
    this.dialog = byId("verify");
    this.verdict = byId("verify-verdict");
    this.image = byId("verify-picture");
    this.facts = byId("verify-facts");
    this.drawButton = byId("verify-draw");
    this.drawButton.addEventListener("click", () => {
      this.dialog.close();
      location.hash = this.hash;
    });
    byId("verify-open").addEventListener("click", async () => {
      this.dialog.close();
      (await page.loadView("complete"))?.openFile(this.file);
    });
    this.dialog.addEventListener("close", () => {
      this.controller?.abort();
      URL.revokeObjectURL(this.url);
    });
  }

  /** Check a file, and show the verdict. */
  async open(file, recipe) {
    this.controller?.abort();
    const { signal } = this.controller = new AbortController();
    this.file = file;
    this.showPicture(file, recipe);
    this.setVerdict("Drawing it again …");
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const response = await withRetries(() => postImages("v1/verify", {}, file, signal), signal,
        { onStatus: (text) => this.setVerdict(text) });
      const { verdict, changed_pixels: changed, changes } = await readJson(response);
      if (signal.aborted) return;
      this.setVerdict(VERDICTS[verdict](changed));
      this.dialog.dataset.verdict = verdict;
      if (changes) this.showImage(`data:image/png;base64,${changes}`, "The changed pixels, in red");
    } catch (error) {
      if (!signal.aborted) this.setVerdict(`It cannot be checked. ${describeError(error)}`);
    }
  }

  /** Show the picture and the facts of its recipe. */
  showPicture(file, recipe) {
    URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(file);
    this.showImage(this.url, "The picture");
    delete this.dialog.dataset.verdict;
    this.facts.textContent = [
      recipe.model,
      recipe.label && `class ${recipe.label}`,
      recipe.n > 1 ? `${recipe.n} pictures from seed ${recipe.seed}` : `seed ${recipe.seed}`,
    ].filter(Boolean).join(" · ");
    const fields = linkFields(recipe);
    this.hash = fields && toHash("draw", fields);
    this.drawButton.hidden = !fields || !this.page.models.some(({ id }) => id === recipe.model);
  }

  showImage(address, description) {
    this.image.src = address;
    this.image.alt = description;
  }

  setVerdict(text) {
    this.verdict.textContent = text;
  }
}
