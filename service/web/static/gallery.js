/** The gallery: earlier drawings and kept images as links with thumbnails, in local storage. */

import { drawnAs } from "./format.js";

const STORAGE_KEY = "scanline-drawn"; // of both strips; another key would lose what visitors kept
const LIMITS = { drawn: 24, kept: 96 }; // entries per strip

/** Load the stored entries; none if they are damaged or storage is forbidden. */
function load() {
  try {
    const { drawn, kept } = JSON.parse(localStorage.getItem(STORAGE_KEY));
    const valid = ({ hash, picture }) => /^#(draw|complete)\?/.test(hash)
      && picture.startsWith("data:image/png;base64,");
    return { drawn: drawn.filter(valid), kept: kept.filter(valid) };
  } catch {
    return { drawn: [], kept: [] };
  }
}

/**
 * Describe a drawing in words.
 *
 * @param {{view: string, fields: object}} link
 * @param {string | null} label class of its first picture
 */
export function describeDrawing({ view, fields: { model, n, seed } }, label) {
  const noun = view === "complete" ? "completion" : "picture";
  const count = n > 1 ? `${n} ${noun}s` : `a ${noun}`;
  const shown = label && (n > 1 ? `, the first ${drawnAs(label)}` : `, ${drawnAs(label)}`);
  return `${count} by ${model}${shown ?? ""}, seed ${seed}`;
}

/** The gallery's two strips: `drawn` ("Drawn before") and `kept` ("Kept"). */
export class Gallery {
  /** @param {HTMLElement} element contains both strips, and the button that clears the first */
  constructor(element) {
    this.element = element;
    this.strips = load();
    this.latest = null; // hash of the drawing that was added last
    element.addEventListener("click", ({ target }) => {
      if (target.closest("a")) scrollTo(0, 0); // the linked drawing appears at the top
    });
    element.querySelector("button").addEventListener("click", () => {
      this.strips.drawn = [];
      this.save();
      (element.querySelector("a") ?? document.getElementById("main")).focus();
    });
    const reload = () => {
      this.strips = load();
      this.render();
    };
    // Another tab has changed it, or may have while this page was in the back/forward cache.
    addEventListener("storage", ({ key }) => key === STORAGE_KEY && reload());
    addEventListener("pageshow", ({ persisted }) => persisted && reload());
    this.render();
  }

  /** Add a drawing, with its first image as the thumbnail. */
  add(hash, canvas, title) {
    this.latest = hash;
    this.addEntry("drawn", { hash, picture: canvas.toDataURL(), title });
  }

  isKept(hash) {
    return this.strips.kept.some((entry) => entry.hash === hash);
  }

  /** Keep an image, or remove it from the kept ones. */
  toggleKept(hash, canvas, title) {
    if (!this.isKept(hash)) {
      this.addEntry("kept", { hash, picture: canvas.toDataURL(), title });
      return;
    }
    this.strips.kept = this.strips.kept.filter((entry) => entry.hash !== hash);
    this.save();
  }

  addEntry(kind, entry) {
    const others = this.strips[kind].filter(({ hash }) => hash !== entry.hash);
    this.strips[kind] = [entry, ...others].slice(0, LIMITS[kind]);
    this.save();
  }

  save() {
    const stored = { ...this.strips, drawn: [...this.strips.drawn] };
    do {
      try {
        localStorage.setItem(STORAGE_KEY, JSON.stringify(stored));
        break;
      } catch { /* storage is full: drop the oldest drawing; or forbidden: store nothing */ }
    } while (stored.drawn.pop());
    this.render();
  }

  /** Update the strips. Items that stay are not moved, because one may be pressed right now. */
  render() {
    const { activeElement } = document;
    for (const [kind, entries] of Object.entries(this.strips)) {
      const strip = this.element.querySelector(`[data-strip=${kind}]`);
      // A single drawing that is still on the page was not drawn before.
      strip.hidden = entries.every(({ hash }) => kind === "drawn" && hash === this.latest);
      const list = strip.querySelector("ul");
      const items = new Map([...list.children].map((item) => [itemHash(item), item]));
      const hashes = new Set(entries.map(({ hash }) => hash));
      for (const [hash, item] of items) if (!hashes.has(hash)) item.remove();
      for (const [k, { hash, picture, title }] of entries.entries()) {
        const item = items.get(hash) ?? createItem(hash);
        const text = `Draw again: ${title}`;
        Object.assign(item.querySelector("img"), { src: picture, alt: text, title: text });
        if (list.children[k] !== item) list.insertBefore(item, list.children[k] ?? null);
      }
    }
    this.element.hidden = !this.element.querySelector("[data-strip]:not([hidden])");
    activeElement.focus({ preventScroll: true }); // an element that moves loses the focus
  }
}

/** Return the hash of an item's link; the `href` property would be the absolute address. */
const itemHash = (item) => item.querySelector("a").getAttribute("href");

/** Create an empty item that links to a drawing. */
function createItem(hash) {
  const [item, link] = ["li", "a"].map((tag) => document.createElement(tag));
  link.href = hash;
  link.append(document.createElement("img"));
  item.append(link);
  return item;
}
