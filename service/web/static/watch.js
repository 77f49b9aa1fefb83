/** The view "Watch": one picture being drawn, with the dice that choose each pixel. */

import { describeError, isUnavailable } from "./api.js";
import { DiceStage } from "./dice-stage.js";
import { SAMPLING } from "./sampling-controls.js";
import { ShareBar } from "./share.js";
import { StatusPanel } from "./status.js";

/** Shows the dice stage, and the link to its picture. */
export class WatchView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    const view = document.getElementById("watch");
    this.status = new StatusPanel(view.querySelector("[data-status-panel]"));
    this.share = new ShareBar(view.querySelector("[data-share]"), () => this.stage.pictures());
    this.stage = new DiceStage(document.getElementById("watch-stage"), {
      onStatus: (text) => { this.status.clearError(); this.status.show(text); },
      onError: (error) => this.fail(error),
      onPicture: (source) => this.onPicture(source),
      onDrawn: () => this.updateShare(),
    });
  }

  setModel(model) {
    this.model = model;
    this.failed = false;
    this.status.clear();
    this.share.setLink(null);
    this.stage.setModel(model);
  }

  /** Draw the picture of a link, or a new one. */
  open(fields) {
    const named = ["seed", "label", ...SAMPLING].some((name) => fields.has(name));
    return this.stage.begin({ link: named ? fields : null });
  }

  /** Try again after a failure. */
  onShow() {
    if (!this.failed) return;
    this.failed = false;
    this.status.clearError();
    this.stage.retry();
  }

  /** Share the link of a picture; one that the visitor has changed midway has none. */
  onPicture(source) {
    this.failed = false;
    const fields = { model: this.model.id, ...source };
    if (source) this.page.setLink("watch", fields, { push: true });
    this.link = source && { view: "watch", fields };
    this.updateShare();
  }

  /** Offer the link once the server has drawn the picture. */
  updateShare() {
    this.share.setLink(this.stage.pictures().length ? this.link : null, false);
  }

  fail(error) {
    this.failed = isUnavailable(error);
    this.showError(describeError(error));
  }

  showError(text) {
    this.status.showError(text);
  }
}
