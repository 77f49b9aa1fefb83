/** The page: its views, its models, and the address that brings the same pictures back. */

import { VIEWS, readAddress, toHash, writeAddress } from "./address.js";
import { call, explain, key, missing } from "./api.js";
import { receiveFiles } from "./file-drop.js";
import { readStamp } from "./png.js";
import { Viewer } from "./viewer.js";

const LOADING_MS = 500;
const SLOW = "Loading …"; // said of a view that takes longer to come than this
const SLOW_MS = 500;
const MODULES = {
  draw: async () => (await import("./draw.js")).DrawView,
  complete: async () => (await import("./complete.js")).CompleteView,
  inside: async () => (await import("./inside.js")).InsideView,
  play: async () => (await import("./play.js")).PlayView,
  learn: async () => (await import("./learn.js")).LearnView,
};

/** Name a model, and what it draws. */
const about = ({ id, width, height, channels }) =>
  `${id}, ${width} × ${height} ${channels === 1 ? "grey" : "colour"}`;

/** Give the models, once the server has loaded them. */
async function loadModels(notice) {
  const line = notice.querySelector("[role=status]");
  const say = (sentence) => { if (line.textContent !== sentence) line.textContent = sentence; };
  const enter = document.getElementById("enter-key");
  for (;;) {
    try {
      return (await (await call("v1/models")).json()).data;
    } catch (error) {
      enter.hidden = error.status !== 401;
      if (!enter.hidden) {
        say(explain(error));
        await new Promise((resolve) => enter.addEventListener("click", resolve, { once: true }));
        enter.hidden = true;
        key.declined = false;
        continue;
      }
      say(error.status > 501 ? "The models are loading …" : `${explain(error)} Trying again …`);
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_MS));
  }
}

/**
 * What the views share. A view has use(model), to take another model, and open(fields), to show
 * what a link says or, where it says nothing, what it likes; it calls link() when it shows
 * something that a link can bring back.
 */
class Page {
  constructor(models) {
    this.models = models;
    this.shown = {}; // the address of what each view shows
    this.places = {}; // how far down each view was left
    this.viewer = new Viewer(this);
    this.views = {}; // a view is loaded when it is first shown
    this.loading = {};
    this.select = document.getElementById("model");
    this.select.replaceChildren(...models.map((model) => new Option(about(model), model.id)));
    document.getElementById("model-field").hidden = models.length < 2;
    this.use(); // the first
    this.select.addEventListener("change", async () => {
      const view = this.wanted?.view ?? this.current; // the one being loaded, or the one shown
      this.complain(null);
      this.use(this.select.value);
      history.pushState(null, "", location.hash); // Back gives the model before
      this.link(view, { model: this.model.id });
      (await this.come(view))?.open(new URLSearchParams());
    });
    document.querySelector("nav").addEventListener("click", (event) => {
      const tab = event.target.closest("[data-view]"); // pressed again where it did not come
      if (tab && tab.dataset.view !== this.current && tab.hash === location.hash) this.go();
    });
    addEventListener("hashchange", () => this.go());
    addEventListener("click", () => { key.declined = false; }, true); // to be asked, for each act
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address says what is shown, not where the focus is
      document.getElementById("main").focus();
    });
  }

  /** Take a picture that was pasted or dropped. */
  async take(file) {
    // What cannot be read, as a folder, is told of as any file that is no picture.
    const at = this.wanted?.view ?? this.current; // the one being loaded, or the one shown
    const taken = ["complete", "inside"].includes(at); // it is wanted right there
    if (!taken && this.restore(await readStamp(file).catch(() => null))) return;
    const view = at === "inside" ? "inside" : "complete";
    (await this.come(view))?.bring(file);
  }

  /** Give a view, loaded when it is first asked for. */
  view(name) {
    this.loading[name] ??= MODULES[name]().catch(missing).then((View) => {
      const view = new View(this);
      view.use(this.model);
      this.views[name] = view;
      return view;
    }).catch((error) => {
      delete this.loading[name]; // to be tried again
      this.complain(explain(error));
      reload.hidden = false; // Chromium remembers that an import failed
      throw error;
    });
    return this.loading[name];
  }

  /** Wait for a view, and say so where that takes long; null where it does not come, which is told. */
  async come(name) {
    const { wanted } = this;
    const slow = setTimeout(() =>
      loading.hidden && this.wanted === wanted && this.complain(SLOW), SLOW_MS);
    const view = await this.view(name).catch(() => null);
    clearTimeout(slow);
    if (view && loading.querySelector("[role=status]").textContent === SLOW) this.complain(null);
    return view;
  }

  /** Draw again what a picture that was saved here says it was; false where it says nothing. */
  restore(hash) {
    if (!hash || !/^#(draw|complete)\?/.test(hash)) return false;
    const wanted = new URLSearchParams(hash.split("?")[1]).get("model");
    if (!this.models.some(({ id }) => id === wanted)) return false;
    writeAddress(hash);
    this.go();
    return true;
  }

  /** Give every view another model. */
  use(id) {
    this.model = this.models.find((model) => model.id === id) ?? this.models[0];
    this.select.value = this.model.id;
    this.shown = {};
    for (const name of VIEWS) {
      this.views[name]?.use(this.model);
      this.tab(name).hash = toHash(name, { model: this.model.id });
    }
  }

  /** Say what is wrong with the page itself; null if nothing is any more. */
  complain(sentence) {
    reload.hidden = true;
    loading.hidden = sentence === null;
    loading.querySelector("[role=status]").textContent = sentence ?? "";
    if (sentence) scrollTo(0, 0);
  }

  tab(view) {
    return document.querySelector(`nav [data-view=${view}]`);
  }

  /** Do what the address says. */
  async go() {
    const wanted = readAddress();
    if (!wanted) {
      if (!this.current) location.replace("#draw"); // something must be shown
      return;
    }
    const { view, query } = wanted;
    const fields = new URLSearchParams(query);
    const model = fields.get("model");
    if (model && model !== this.model.id) this.use(model);
    const there = !model || model === this.model.id;
    this.complain(there ? null : `There is no model “${model}” here. This is ${this.model.id}.`);
    this.wanted = wanted;
    const { hash } = location;
    const loaded = await this.come(view); // before it is shown: what is seen can be pressed
    if (!loaded) {
      if (this.current && this.wanted === wanted) this.wanted = null; // the one shown stays
      return;
    }
    if (this.wanted !== wanted) return; // another was asked for meanwhile,
    if (location.hash !== hash && readAddress()) return; // or is about to be: it would be lost
    const asked = [...fields.keys()].some((name) => name !== "model");
    const same = this.shown[view] && (!asked || this.shown[view] === location.hash);
    this.bringForward(view, same ? this.places[view] : 0);
    if (same) {
      writeAddress(this.shown[view]);
      loaded.again?.();
    } else {
      loaded.open(fields);
    }
  }

  /** Bring a view to the front because something is about to be shown in it. */
  show(view) {
    this.wanted = null;
    this.complain(null);
    this.bringForward(view);
    writeAddress(this.shown[view] ?? toHash(view, { model: this.model.id }));
  }

  bringForward(view, place = 0) {
    for (const dialog of document.querySelectorAll("#viewer, #copy-dialog")) dialog.close();
    const other = view !== this.current;
    if (other && this.current) this.places[this.current] = scrollY;
    this.current = view;
    document.title = `${this.tab(view).textContent} – Scanline`;
    for (const name of VIEWS) {
      document.getElementById(name).hidden = name !== view;
      if (name === view) this.tab(name).setAttribute("aria-current", "page");
      else this.tab(name).removeAttribute("aria-current");
    }
    if (!document.activeElement.checkVisibility()) document.getElementById("main").focus();
    // What was kept is at hand wherever pictures are made; moved after what had the focus has lost it.
    if (other) document.querySelector(`#${view} .results`)?.append(this.viewer.gallery.place);
    if (other) scrollTo(0, place);
  }

  /** Keep what makes a view's pictures again; in the address too while the view is shown. */
  link(view, fields) {
    this.shown[view] = toHash(view, fields);
    this.tab(view).hash = this.shown[view];
    if (view === this.current && (this.wanted?.view ?? view) === view) writeAddress(this.shown[view]);
  }
}

/** Close a dialog by a press outside of it. */
function closeBeside(dialog) {
  let pressed = false;
  const beside = ({ target, clientX: x, clientY: y }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    return target === dialog && (x < left || x > right || y < top || y > bottom);
  };
  dialog.addEventListener("pointerdown", (event) => { pressed = beside(event); });
  dialog.addEventListener("click", (event) => pressed && beside(event) && dialog.close());
}

if (!location.hash && location.search) { // a shared link, as the server reads it
  history.replaceState(null, "", `${location.pathname}#draw${location.search}`);
}
if (!("closedBy" in HTMLDialogElement.prototype)) { // Safari does not know it
  for (const dialog of document.querySelectorAll("dialog[closedby]")) closeBeside(dialog);
}
const loading = document.getElementById("loading");
const reload = document.getElementById("reload");
reload.addEventListener("click", () => location.reload());
const opened = loadModels(loading).then((models) => {
  loading.hidden = true;
  return new Page(models);
});
receiveFiles(async (file) => (await opened).take(file)); // while models load, too: it would be lost
(await opened).go();
