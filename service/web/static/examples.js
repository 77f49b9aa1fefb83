/** Example pictures to complete, drawn by the model. */

import { describeError, drawPicture } from "./api.js";
import { modelTitle } from "./model-picker.js";
import { toCanvas } from "./pixels.js";

/**
 * Seeds and class numbers of the examples. The top rows of the shipped model's digits fit several
 * digits: by its own estimate, those of the first one fit a 7 (28 %), a 3, an 8, a 5 or a 9.
 */
const DEFAULT_EXAMPLES = [[35, 8], [48, 7], [40, 3], [27, 4], [50, 3], [43, 2]];
const PHOTOGRAPHS = [[4, 9], [2, 7], [4, 8], [1, 1], [2, 6], [3, 4]];
const TOP_SHARE = 2 / 7; // of an example's rows that are kept
const DRAWING = "The model is drawing examples …";
const byId = (id) => document.getElementById(id);

/** The examples above the editor. If they fail, a button draws them again. */
export class ExampleStrip {
  /**
   * @param {HTMLElement} statusLine shows the progress, unless another message has replaced it
   * @param {(picture: import("./pixels.js").Picture) => void} onPick
   */
  constructor(statusLine, onPick) {
    Object.assign(this, { statusLine, onPick });
    [this.list, this.retryButton] = ["examples", "more-examples"].map(byId);
    this.retryButton.addEventListener("click", () => {
      this.drawing = this.draw();
      byId("upload").focus();
    });
  }

  setModel(model) {
    this.model = model;
    this.drawing = null;
    this.list.replaceChildren();
  }

  /** Draw the examples, once, and return them; none if that failed. */
  load() {
    this.drawing ??= this.draw();
    return this.drawing;
  }

  async draw() {
    const { model, list, retryButton, statusLine } = this;
    const announced = () => model === this.model && statusLine.textContent.startsWith(DRAWING);
    const say = (text) => { statusLine.textContent = text; };
    retryButton.hidden = true;
    list.replaceChildren(...createPlaceholders());
    say(DRAWING);
    let pictures = [];
    try {
      pictures = await drawExamples(model, (text) => announced() && say(`${DRAWING} ${text}`));
      if (announced()) say("");
    } catch (error) {
      if (model === this.model) say(`The examples failed. ${describeError(error)}`);
    }
    if (model !== this.model) return pictures;
    retryButton.hidden = pictures.length > 0;
    list.replaceChildren(...pictures.map((picture, k) =>
      createThumbnail(picture, k + 1, () => this.onPick(picture))));
    return pictures;
  }
}

/** Return the number of rows of an example to keep. */
export const exampleRows = ({ height }) => Math.max(1, Math.round(TOP_SHARE * height));

/** Draw the examples, of different classes if the model has classes. */
async function drawExamples(model, onStatus) {
  const { classes } = model;
  const examples = modelTitle(model) === "Photographs" ? PHOTOGRAPHS : DEFAULT_EXAMPLES;
  return Promise.all(examples.map(([seed, number], k) => drawPicture(model, {
    seed,
    ...(classes.length ? { label: classes[number % classes.length] } : {}),
  }, null, k ? undefined : onStatus))); // all requests wait for the same reason; one reports it
}

/** Create the placeholders of the examples. */
const createPlaceholders = () => DEFAULT_EXAMPLES.map(() => {
  const item = document.createElement("li");
  item.className = "placeholder";
  return item;
});

/** Create the button that picks an example. */
function createThumbnail(picture, number, onPick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.ariaLabel = `Example ${number}: keep its top and complete it`;
  button.addEventListener("click", onPick);
  button.append(toCanvas(picture));
  item.append(button);
  return item;
}
