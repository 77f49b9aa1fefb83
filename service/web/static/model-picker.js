/** Choice of the model: a picture button per model. */

import { call } from "./api.js";

const TITLES = { // by the classes of MNIST and CIFAR-10
  "0 1 2 3 4 5 6 7 8 9": "Digits",
  "airplane automobile bird cat deer dog frog horse ship truck": "Photographs",
};
const THUMBNAIL_SEED = 7;
const EMPTY = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E";

/** Return a model's name for visitors: what it draws, which its classes tell, or its id. */
export function modelTitle(model, models = []) {
  const title = ({ id, classes }) => TITLES[classes.join(" ")] ?? id;
  const same = models.filter((other) => title(other) === title(model)).length > 1;
  return same ? model.id : title(model);
}

/** Return a model's id and image format. */
const modelFacts = ({ id, width, height, channels }) =>
  `${id}, ${width} × ${height} ${channels === 1 ? "grey" : "colour"}`;

/** Radio buttons in the header, shown if there are several models. */
export class ModelPicker {
  /** @param {object[]} models @param {(id: string) => void} onPick */
  constructor(models, onPick) {
    this.fieldset = document.getElementById("model-field");
    this.fieldset.hidden = models.length < 2;
    this.models = models;
    for (const model of models) this.addButton(model);
    this.fieldset.addEventListener("change", ({ target }) => onPick(target.value));
  }

  addButton(model) {
    const [label, input, text, picture] =
      ["label", "input", "span", "img"].map((tag) => document.createElement(tag));
    Object.assign(input, { type: "radio", name: "model", value: model.id });
    // An empty picture keeps the space of the thumbnail, so that the header does not move.
    Object.assign(picture, { alt: "", width: 28, height: 28, src: EMPTY });
    label.title = modelFacts(model);
    text.append(picture, modelTitle(model, this.models));
    label.append(input, text);
    this.fieldset.append(label);
  }

  inputs() {
    return [...this.fieldset.querySelectorAll("input")];
  }

  select(id) {
    for (const input of this.inputs()) input.checked = input.value === id;
  }

  /** Draw the pictures of the buttons. A button whose picture fails shows only its name. */
  async drawThumbnails() {
    if (this.fieldset.hidden) return;
    for (const { id, classes } of this.models) {
      const query = classes.length ? `?label=${encodeURIComponent(classes[7 % classes.length])}` : "";
      const picture = this.inputs().find(({ value }) => value === id).parentElement.querySelector("img");
      const path = `v1/samples/${encodeURIComponent(id)}/${THUMBNAIL_SEED}.png${query}`;
      try {
        const blob = await (await call(path)).blob();
        picture.src = URL.createObjectURL(blob);
      } catch {
        picture.hidden = true; // the name is enough
      }
    }
  }
}
