/** What was drawn before, and what is kept: links and small pictures, in this browser alone. */

const NAME = "scanline-drawn";
const MOST = { drawn: 24, kept: 96 };

/** Read what is stored; nothing where it is damaged, or nothing may be stored. */
function load() {
  try {
    const { drawn, kept } = JSON.parse(localStorage.getItem(NAME));
    const sound = ({ hash, picture }) => /^#(draw|complete)\?/.test(hash)
      && picture.startsWith("data:image/png;base64,");
    return { drawn: drawn.filter(sound), kept: kept.filter(sound) };
  } catch {
    return { drawn: [], kept: [] };
  }
}

/** Name an image by what was asked for. */
export const titleOf = ({ model, label, seed }) =>
  [model, label === "random" ? null : label, `seed ${seed}`].filter(Boolean).join(", ");

/** The two strips. */
export class Gallery {
  /** @param {HTMLElement} place holds a strip of each kind, and a button that empties one */
  constructor(place) {
    this.place = place;
    this.strips = load();
    place.addEventListener("click", ({ target }) => {
      if (target.closest("a")) scrollTo(0, 0); // what it leads to is drawn up there
    });
    place.querySelector("button").addEventListener("click", () => {
      this.strips.drawn = []; // what is kept is kept until it is not wanted any more
      this.store();
      (place.querySelector("a") ?? document.getElementById("main")).focus();
    });
    addEventListener("storage", ({ key }) => {
      if (key !== NAME) return; // another tab's drawing
      this.strips = load();
      this.show();
    });
    this.show();
  }

  /** Remember a drawing by its link and its first image. */
  add(hash, canvas, title) {
    this.put("drawn", { hash, picture: canvas.toDataURL(), title });
  }

  /** Whether an image is kept. */
  keeps(hash) {
    return this.strips.kept.some((one) => one.hash === hash);
  }

  /** Keep an image, or keep it no longer. */
  keep(hash, canvas, title) {
    if (!this.keeps(hash)) {
      this.put("kept", { hash, picture: canvas.toDataURL(), title });
      return;
    }
    this.strips.kept = this.strips.kept.filter((one) => one.hash !== hash);
    this.store();
  }

  put(kind, entry) {
    const others = this.strips[kind].filter(({ hash }) => hash !== entry.hash);
    this.strips[kind] = [entry, ...others].slice(0, MOST[kind]);
    this.store();
  }

  store() {
    const stored = { ...this.strips, drawn: [...this.strips.drawn] };
    do {
      try {
        localStorage.setItem(NAME, JSON.stringify(stored));
        break;
      } catch { /* it is full: what was drawn makes room; or forbidden: only this tab remembers */ }
    } while (stored.drawn.pop());
    this.show();
  }

  /** Show what there is; what stays where it was is not moved, for it may be being pressed. */
  show() {
    const { activeElement } = document;
    for (const [kind, entries] of Object.entries(this.strips)) {
      const strip = this.place.querySelector(`[data-strip=${kind}]`);
      strip.hidden = entries.length === 0;
      const list = strip.querySelector("ul");
      const there = new Map([...list.children].map((item) => [hashOf(item), item]));
      const wanted = new Set(entries.map(({ hash }) => hash));
      for (const [hash, item] of there) if (!wanted.has(hash)) item.remove();
      for (const [k, { hash, picture, title }] of entries.entries()) {
        const item = there.get(hash) ?? itemOf(hash);
        Object.assign(item.querySelector("img"), { src: picture, alt: `Draw again: ${title}` });
        if (list.children[k] !== item) list.insertBefore(item, list.children[k] ?? null);
      }
    }
    this.place.hidden = !Object.values(this.strips).some((entries) => entries.length);
    activeElement.focus({ preventScroll: true }); // moved, it has lost it
  }
}

/** What a place leads to, as it was given: `href` itself would be the whole address. */
const hashOf = (item) => item.querySelector("a").getAttribute("href");

/** Make a place for a picture, which leads to its drawing. */
function itemOf(hash) {
  const [item, link] = ["li", "a"].map((tag) => document.createElement(tag));
  link.href = hash;
  link.append(document.createElement("img"));
  item.append(link);
  return item;
}
