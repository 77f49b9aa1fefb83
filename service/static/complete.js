/** The view "Complete": a picture with a hole, and many ways to fill it. */

import { call, explain, postJson } from "./api.js";
import { echo, randomSeed, readNumber } from "./draw.js";
import { Easel } from "./easel.js";
import { area, blank, fromFile, fromText, toImageData, toPng, toText } from "./pixels.js";
import { Sheet } from "./sheet.js";

const EXAMPLES = 6;

/** Choose a picture, erase a part, complete it. */
export class CompleteView {
  constructor(page) {
    this.page = page;
    this.form = document.getElementById("complete-form");
    this.sheet = new Sheet(document.getElementById("complete"), page.open);
    this.easel = new Easel(document.getElementById("easel"), () => this.edited());
    const { brush, temperature, heat, rows } = this.form.elements;
    echo(temperature, heat);
    echo(brush, this.form.elements["brush-size"], String);
    brush.addEventListener("input", () => { this.easel.size = Number(brush.value); });
    rows.addEventListener("input", () => this.easel.keepRows(Number(rows.value)));
    this.form.addEventListener("change", () => this.takeTool());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.complete();
    });
    this.listen();
  }

  /** Ways for a picture to come in, and the easel's buttons. */
  listen() {
    const file = document.getElementById("file");
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("upload", () => file.click());
    on("blank", () => this.startBlank());
    on("undo", () => this.easel.undo());
    on("invert", () => this.easel.invert());
    file.addEventListener("change", () => {
      if (file.files[0]) this.bring(file.files[0]);
      file.value = "";
    });
    document.addEventListener("paste", (event) => {
      const pasted = [...event.clipboardData.files].find((f) => f.type.startsWith("image/"));
      if (pasted) this.bring(pasted);
    });
    document.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      const dropped = event.dataTransfer.files[0];
      if (!dropped) return;
      event.preventDefault();
      this.bring(dropped);
    });
  }

  /** Take a model: its size, its classes, and examples it draws itself. */
  use(model) {
    this.model = model;
    this.sheet.clear();
    const { rows, label, colour } = this.form.elements;
    rows.max = model.height - 1;
    const names = ["", ...model.classes];
    label.replaceChildren(...names.map((name) => new Option(name || "anything", name)));
    label.closest("label").hidden = model.classes.length === 0;
    colour.hidden = model.channels === 1;
    this.easel.load({ ...blank(model), known: new Uint8Array(area(model)) });
    this.examples = null;
  }

  /** Open the view: with a link's picture, or with an example that is half erased. */
  async open(fields) {
    if (this.examples === null) this.examples = this.drawExamples();
    if (fields.has("image")) {
      const { n, seed, temperature, label } = this.form.elements;
      for (const [name, field] of Object.entries({ n, seed, temperature, label })) {
        if (fields.has(name)) field.value = fields.get(name);
      }
      try {
        this.easel.load(await fromFile(fromText(fields.get("image")), this.model));
      } catch (error) {
        this.sheet.complain(`The link's picture is damaged. ${explain(error)}`);
        return;
      }
      await this.complete();
    } else if (!this.easel.picture.known.includes(1)) {
      const first = (await this.examples)[0];
      if (first) await this.pick(first);
    }
  }

  /** Have the model draw pictures to start from, each of another class if it has classes. */
  async drawExamples() {
    const { id, classes } = this.model;
    const list = document.getElementById("examples");
    const wanted = Array.from({ length: EXAMPLES }, (_, k) => ({
      model: id, seed: 61 + k, output: "values",
      ...(classes.length ? { label: classes[(3 + 4 * k) % classes.length] } : {}),
    }));
    try {
      const replies = await Promise.all(wanted.map((body) => postJson("v1/samples", body)));
      const pictures = replies.map(({ images: [{ values }] }) =>
        ({ shape: this.model, values: Uint8Array.from(values), known: null }));
      list.replaceChildren(...pictures.map((picture, k) => this.thumbnail(picture, k)));
      return pictures;
    } catch (error) {
      this.sheet.complain(`No examples: ${explain(error)}`);
      this.examples = null; // ask again when the view is opened again
      return [];
    }
  }

  thumbnail(picture, k) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    button.type = "button";
    button.ariaLabel = `Example ${k + 1}: erase its lower half and complete it`;
    canvas.width = picture.shape.width;
    canvas.height = picture.shape.height;
    canvas.getContext("2d").putImageData(toImageData(picture), 0, 0);
    button.addEventListener("click", () => this.pick(picture));
    button.append(canvas);
    item.append(button);
    return item;
  }

  /** Erase the lower half of a picture, and complete it at once. */
  pick(picture) {
    this.easel.load({ ...picture, known: null });
    this.easel.keepRows(Math.round(this.model.height / 2));
    return this.complete();
  }

  /** Put a person's picture on the easel, as much of it as the model can see. */
  async bring(file) {
    this.page.show("complete");
    try {
      const picture = await fromFile(file, this.model);
      this.easel.load(picture);
      if (!picture.known.includes(0)) this.easel.keepRows(Math.round(this.model.height / 2));
      this.sheet.say("Your picture is on the easel. Erase what you like, then complete it.");
    } catch (error) {
      this.sheet.complain(explain(error));
    }
  }

  /** Begin with a black sheet and a pen. */
  startBlank() {
    this.easel.load(blank(this.model));
    const { tool, brush } = this.form.elements;
    tool.value = "draw";
    brush.value = Math.max(1, Math.round(this.model.width / 12));
    brush.dispatchEvent(new Event("input"));
    this.takeTool();
    this.sheet.say("Draw the upper part, then choose how many rows are known.");
    document.getElementById("easel").focus();
  }

  takeTool() {
    const { tool, colour } = this.form.elements;
    this.easel.tool = tool.value;
    const hex = colour.hidden ? "#ffffff" : colour.value;
    this.easel.colour = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  /** The easel changed: say how much is known, and the truth about the order. */
  edited() {
    const { known, shape } = this.easel.picture;
    const rows = Math.floor((known.includes(0) ? known.indexOf(0) : known.length) / shape.width);
    this.form.elements.rows.value = rows;
    this.form.elements["rows-known"].textContent = String(rows);
    document.getElementById("order-note").hidden = !this.easel.scattered;
  }

  /** Send the picture, transparent where it is unknown. */
  async complete() {
    const { picture } = this.easel;
    if (!picture.known.includes(0)) {
      this.sheet.complain("Nothing is erased yet. Rub something out, or lower the known rows.");
      return;
    }
    const { n, seed, temperature, label, pace } = this.form.elements;
    const given = { ...picture, values: picture.values.slice(), known: picture.known.slice() };
    const png = await toPng(given, (p) => given.known[p]);
    const fields = {
      model: this.model.id,
      n: readNumber(n, 8),
      seed: readNumber(seed, randomSeed()),
      temperature: Number(temperature.value),
      ...(label.value ? { label: label.value } : {}),
    };
    n.value = fields.n;
    this.page.link("complete", { ...fields, image: await toText(png) });
    await this.sheet.run({
      model: this.model,
      n: fields.n,
      label: label.value,
      pace: Number(pace.value),
      given,
      open: (signal) => {
        const body = new FormData();
        for (const [name, value] of Object.entries(fields)) body.set(name, value);
        body.set("stream", "true");
        body.set("image", png, "picture.png");
        return call("v1/completions", { method: "POST", body, signal });
      },
    });
  }
}
