/** Scene 1: predict the distribution of the next pixel, and roll the dice for it. */

import { DiceStage } from "../dice-stage.js";

/** The same stage as in the view "Watch", which waits before an uncertain pixel. */
export class DiceScene {
  constructor(element, onStatus, onError) {
    const host = { onStatus, onError, onPicture: () => {} };
    this.stage = new DiceStage(element.querySelector("#learn-stage"), host);
  }

  start(model) {
    this.stage.setModel(model);
    return this.stage.begin({ autoplay: false });
  }
}
