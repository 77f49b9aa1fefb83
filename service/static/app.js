/** The page: its views, its models, and links that bring the same pictures back. */

import { call, explain } from "./api.js";
import { CompleteView } from "./complete.js";
import { DrawView } from "./draw.js";
import { InsideView } from "./inside.js";
import { Viewer } from "./viewer.js";

const VIEWS = ["draw", "complete", "inside"];
const LOADING_MS = 500;

/** Give the models, once the server has loaded them. */
async function loadModels(say) {
  for (;;) {
    try {
      const { data } = await (await call("v1/models")).json();
      if (data.length) return data;
      say("The models are loading …");
    } catch (error) {
      say(`${explain(error)} Trying again …`);
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_MS));
  }
}

/** Read the address: the view, and its fields. */
function readAddress() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return { view: VIEWS.includes(view) ? view : "draw", fields: new URLSearchParams(query) };
}

class Page {
  constructor(models) {
    this.models = models;
    const page = {
      open: (item) => this.viewer.open(item),
      link: (view, fields) => this.link(view, fields),
      show: (view) => this.show(view),
    };
    this.viewer = new Viewer({
      inside: (picture, title, label) => {
        this.link("inside", {});
        this.show("inside");
        this.views.inside.show(picture, title, label);
      },
      complete: (picture) => {
        this.show("complete");
        this.views.complete.pick(picture);
      },
    });
    this.views = {
      draw: new DrawView(page),
      complete: new CompleteView(page),
      inside: new InsideView(page),
    };
    this.select = document.getElementById("model");
    this.select.replaceChildren(...models.map(({ id }) => new Option(id, id)));
    document.getElementById("model-field").hidden = models.length < 2;
    this.select.addEventListener("change", () => {
      this.use(this.select.value);
      this.open(this.current, new URLSearchParams());
    });
    addEventListener("hashchange", () => this.go());
  }

  /** Give every view another model. */
  use(id) {
    this.model = this.models.find((model) => model.id === id) ?? this.models[0];
    this.select.value = this.model.id;
    for (const view of Object.values(this.views)) view.use(this.model);
  }

  /** Do what the address says. */
  go() {
    const { view, fields } = readAddress();
    const wanted = fields.get("model");
    if (!this.model || (wanted && wanted !== this.model.id)) this.use(wanted);
    this.open(view, fields);
  }

  open(view, fields) {
    this.show(view);
    if (view === "draw") {
      const untouched = !this.views.draw.sheet.items.length || fields.has("seed");
      if (untouched) this.views.draw.restore(fields);
    } else {
      this.views[view].open(fields);
    }
  }

  /** Bring a view to the front. */
  show(view) {
    this.current = view;
    for (const name of VIEWS) document.getElementById(name).hidden = name !== view;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** Put into the address what makes the same pictures again; nothing is loaded by it. */
  link(view, fields) {
    const query = String(new URLSearchParams(fields));
    history.replaceState(null, "", `#${view}${query && `?${query}`}`);
  }
}

const loading = document.getElementById("loading");
const models = await loadModels((sentence) => { loading.textContent = sentence; });
loading.hidden = true;
new Page(models).go();
