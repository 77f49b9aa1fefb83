/** Drawing again with each new checkpoint of a model that is being trained. */

import { call, readJson } from "./api.js";

const INTERVAL_MS = 3000;

/** A checkbox. While it is checked, new weights of the model are reported. */
export class FollowTraining {
  /**
   * @param {HTMLInputElement} checkbox
   * @param {object} page the `Page` of app.js
   * @param {() => void} onNewWeights called after the model's facts have been updated
   */
  constructor(checkbox, page, onNewWeights) {
    Object.assign(this, { checkbox, page, onNewWeights });
    checkbox.closest(".field").hidden = false;
    checkbox.addEventListener("change", () => {
      clearTimeout(this.timer);
      if (checkbox.checked) this.check();
    });
    if (checkbox.checked) this.check(); // the browser may have restored it
  }

  async check() {
    clearTimeout(this.timer);
    const { model } = this.page;
    if (!document.hidden) {
      try {
        const now = await readJson(await call(`v1/models/${encodeURIComponent(model.id)}`));
        if (this.checkbox.checked && now.weights !== model.weights) {
          Object.assign(model, now);
          if (this.page.model === model) this.onNewWeights();
        }
      } catch { /* the server may be restarting: check again */ }
    }
    clearTimeout(this.timer);
    if (this.checkbox.checked) this.timer = setTimeout(() => this.check(), INTERVAL_MS);
  }
}
