/** Entry point of the page: its views, its models, and navigation by the address. */

import { VIEWS, readAddress, toHash, writeAddress } from "./address.js";
import { apiKey, call, describeError, readJson, throwLoadError } from "./api.js";
import { listenForFiles } from "./file-drop.js";
import { ModelPicker } from "./model-picker.js";
import { readRecipe } from "./recipe.js";
import { Viewer } from "./viewer.js";

const RETRY_MS = 500;
const LOADING_AFTER_MS = 500; // time to load a view, after which `LOADING` is shown
const LOADING = "Loading …";
const LOADING_MODELS = "The models are loading. In a few seconds they begin to draw …";
const MODULES = {
  draw: async () => (await import("./draw.js")).DrawView,
  watch: async () => (await import("./watch.js")).WatchView,
  complete: async () => (await import("./complete.js")).CompleteView,
  inside: async () => (await import("./inside.js")).InsideView,
  play: async () => (await import("./play.js")).PlayView,
  learn: async () => (await import("./learn.js")).LearnView,
};

/** Fetch the models, waiting until the server has loaded them. */
async function loadModels(notice) {
  const line = notice.querySelector("[role=status]");
  const setStatus = (text) => { if (line.textContent !== text) line.textContent = text; };
  const keyButton = document.getElementById("enter-key");
  for (;;) {
    try {
      return await readJson(await call("v1/models"));
    } catch (error) {
      keyButton.hidden = error.status !== 401;
      if (!keyButton.hidden) {
        setStatus(describeError(error));
        await new Promise((resolve) => keyButton.addEventListener("click", resolve, { once: true }));
        keyButton.hidden = true;
        apiKey.declined = false;
        continue;
      }
      setStatus(error.status > 501 ? LOADING_MODELS : `${describeError(error)} Trying again …`);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/**
 * The state that the views share. Each view has these methods: `setModel(model)` switches to a
 * model; `open(fields)` shows the content of a link, or a default; `showError(text)` shows why
 * `open` has failed; `onShow()`, which is optional, is called when the view is shown again. A view
 * calls `page.setLink()` with the link fields that recreate what it shows.
 */
class Page {
  /** @param {{data: object[], watched: boolean, max_images: number}} list the reply of `v1/models` */
  constructor({ data: models, watched, max_images: maxImages }) {
    this.models = models;
    this.watched = watched; // whether the server loads changed models
    this.maxImages = maxImages; // per request
    this.hashes = {}; // the link of what each view shows
    this.scrollPositions = {}; // by view
    this.viewer = new Viewer(this);
    this.views = {}; // by name, once loaded
    this.loading = {}; // promises of views, by name
    this.opening = null; // the view that opens an address, until it has set its link
    this.picker = new ModelPicker(models, (id) => this.pickModel(id));
    this.setModel(); // the first one
    addEventListener("hashchange", () => this.navigate());
    // After a click, a visitor who declined to enter the API key is asked again.
    addEventListener("click", () => { apiKey.declined = false; }, true);
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address names the view, not the focus
      document.getElementById("main").focus();
    });
  }

  /** Switch to the model that the visitor picked, and draw with it. */
  async pickModel(id) {
    const view = this.requested?.view ?? this.current;
    this.showNotice(null);
    this.setModel(id);
    this.setLink(view, { model: this.model.id }, { push: true }); // Back returns to the previous model
    if (await this.loadView(view)) await this.openLink(view, new URLSearchParams());
  }

  /** Show the content of a link in a loaded view, or the error in the link. */
  async openLink(name, fields) {
    this.opening = name;
    try {
      await this.views[name].open(fields);
    } catch (error) {
      if (error.name !== "AbortError") this.views[name].showError(describeError(error));
    }
  }

  /** Open a file that was pasted or dropped. */
  async openFile(file) {
    const at = this.requested?.view ?? this.current;
    // Elsewhere than in these views, a picture that was saved here is checked. A file that cannot
    // be read, such as a folder, is reported by the view.
    const keepPicture = ["complete", "inside"].includes(at);
    const recipe = keepPicture ? null : await readRecipe(file).catch(() => null);
    if (recipe) {
      await this.verify(file, recipe);
      return;
    }
    const view = at === "inside" ? "inside" : "complete";
    (await this.loadView(view))?.openFile(file);
  }

  /** Check a picture that was saved here, by the recipe in its file. */
  async verify(file, recipe) {
    try {
      const { VerifyDialog } = await import("./verify.js").catch(throwLoadError);
      this.verifyDialog ??= new VerifyDialog(this);
    } catch (error) {
      this.showNotice(describeError(error));
      return;
    }
    this.verifyDialog.open(file, recipe);
  }

  /** Import a view, once. */
  async importView(name) {
    const View = await MODULES[name]().catch(throwLoadError);
    const view = new View(this);
    view.setModel(this.model);
    this.views[name] = view;
    return view;
  }

  /** Load a view, with a notice if it takes long; null if it failed, which is reported. */
  async loadView(name) {
    const { requested } = this;
    const timer = setTimeout(() =>
      notice.hidden && this.requested === requested && this.showNotice(LOADING), LOADING_AFTER_MS);
    this.loading[name] ??= this.importView(name);
    const view = await this.loading[name].catch((error) => {
      this.showNotice(describeError(error));
      reloadButton.hidden = false;
      return null;
    });
    clearTimeout(timer);
    if (view && notice.querySelector("[role=status]").textContent === LOADING) this.showNotice(null);
    return view;
  }

  /** Switch all views to a model; to the first one if the id is unknown. */
  setModel(id) {
    this.model = this.models.find((model) => model.id === id) ?? this.models[0];
    this.picker.select(this.model.id);
    document.getElementById("slow-note").hidden = !this.model.slow;
    this.hashes = {};
    for (const name of VIEWS) {
      this.views[name]?.setModel(this.model);
      this.tab(name).hash = toHash(name, { model: this.model.id });
    }
  }

  /** Show a notice above the views; null hides it. */
  showNotice(text) {
    reloadButton.hidden = true;
    notice.hidden = text === null;
    notice.querySelector("[role=status]").textContent = text ?? "";
    if (text) scrollTo(0, 0);
  }

  tab(view) {
    return document.querySelector(`nav [data-view=${view}]`);
  }

  /** Show the view that the address names. */
  async navigate() {
    const requested = readAddress();
    if (!requested) {
      if (!this.current) location.replace("#draw");
      return;
    }
    const { view, query } = requested;
    const fields = new URLSearchParams(query);
    const model = fields.get("model");
    if (model && model !== this.model.id) this.setModel(model);
    const exists = !model || model === this.model.id;
    this.showNotice(exists ? null
      : `There is no model “${model}” here. “${this.model.id}” draws instead.`);
    this.requested = requested;
    const { hash } = location;
    const loaded = await this.loadView(view); // before showing it, because visible controls must work
    if (!loaded) {
      if (this.current && this.requested === requested) this.requested = null;
      return;
    }
    if (this.requested !== requested) return; // another view was requested meanwhile
    if (location.hash !== hash && readAddress()) return; // its hashchange event is still to come
    const hasFields = [...fields.keys()].some((name) => name !== "model");
    const same = this.hashes[view] && (!hasFields || this.hashes[view] === location.hash);
    this.activate(view, same ? this.scrollPositions[view] : 0);
    if (same) {
      writeAddress(this.hashes[view]);
      loaded.onShow?.();
    } else {
      this.openLink(view, fields);
    }
  }

  /** Show a view that is about to open something. */
  show(view) {
    this.requested = null;
    if (view !== this.current) this.opening = view;
    this.showNotice(null);
    this.activate(view);
    writeAddress(this.hashes[view] ?? toHash(view, { model: this.model.id }));
  }

  activate(view, scrollPosition = 0) {
    for (const dialog of document.querySelectorAll("#viewer, #copy-dialog, #verify")) dialog.close();
    document.querySelector(":popover-open")?.hidePopover();
    const changed = view !== this.current;
    if (changed && this.current) this.scrollPositions[this.current] = scrollY;
    this.current = view;
    landing.classList.remove("waiting");
    document.title = `${this.tab(view).textContent} – Scanline`;
    for (const name of VIEWS) {
      document.getElementById(name).hidden = name !== view;
      if (name === view) this.tab(name).setAttribute("aria-current", "page");
      else this.tab(name).removeAttribute("aria-current");
    }
    if (!document.activeElement.checkVisibility()) document.getElementById("main").focus();
    // The gallery follows to every view that draws. Moved last, after the hidden view lost the focus.
    if (changed) document.querySelector(`#${view} .results`)?.append(this.viewer.gallery.element);
    if (changed) scrollTo(0, scrollPosition);
  }

  /**
   * Set the link of what a view shows; it is in the address while the view is shown.
   *
   * @param {string} view
   * @param {object} fields
   * @param {{push?: boolean}} options `push`: add a history entry, so that Back returns to the
   *   drawing before
   */
  setLink(view, fields, { push = false } = {}) {
    this.hashes[view] = toHash(view, fields);
    this.tab(view).hash = this.hashes[view];
    const opening = this.opening === view;
    if (opening) this.opening = null;
    // The address names another view while that one loads, or before its hashchange event.
    if (view !== this.current || (readAddress()?.view ?? view) !== view) return;
    // What an address opens replaces it. Another entry would lead Back to that address again.
    writeAddress(this.hashes[view], push && !opening);
  }
}

/** Close a dialog when the visitor clicks outside it. */
function closeOnOutsideClick(dialog) {
  let pressedOutside = false;
  const isOutside = ({ target, clientX: x, clientY: y }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    return target === dialog && (x < left || x > right || y < top || y > bottom);
  };
  dialog.addEventListener("pointerdown", (event) => { pressedOutside = isOutside(event); });
  dialog.addEventListener("click", (event) => pressedOutside && isOutside(event) && dialog.close());
}

if (!location.hash && location.search) { // a shared link, see toUrl in share.js
  const fields = new URLSearchParams(location.search);
  const view = VIEWS.includes(fields.get("view")) ? fields.get("view") : "draw";
  fields.delete("view");
  history.replaceState(null, "", `${location.pathname}${toHash(view, fields)}`);
}
if (!("closedBy" in HTMLDialogElement.prototype)) { // not supported by Safari
  for (const dialog of document.querySelectorAll("dialog[closedby]")) closeOnOutsideClick(dialog);
}
const notice = document.getElementById("loading");
const landing = document.getElementById("draw");
if ((readAddress()?.view ?? "draw") === "draw") { // its first lines can be read while the models load
  landing.classList.add("waiting");
  landing.hidden = false;
}
if (!HTMLElement.prototype.togglePopover || !Element.prototype.checkVisibility || !Map.groupBy) {
  notice.querySelector("[role=status]").textContent =
    "This page needs a newer browser: Chrome or Firefox 125, Safari 17.4, or later.";
  throw new Error("the browser is too old");
}
const reloadButton = document.getElementById("reload");
reloadButton.addEventListener("click", () => location.reload());
const loaded = loadModels(notice).then((list) => {
  notice.hidden = true;
  return new Page(list);
});
listenForFiles(async (file) => (await loaded).openFile(file)); // also while the models load
const page = await loaded;
await page.navigate();
page.picker.drawThumbnails(); // after the view has sent its own requests
