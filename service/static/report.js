/** The line that reports how a drawing goes, with a bar where something is under way. */

import { calm } from "./player.js";

/** Says one thing at a time. */
export class Report {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /** Say nothing. */
  clear() {
    this.place.classList.remove("problem");
    this.place.replaceChildren();
  }

  /** Say one sentence; `done`, 0 … 1, is how far it is. */
  say(sentence, done = null) {
    const { place } = this;
    place.classList.remove("problem");
    let line = place.querySelector("[role=status]");
    if (!line) {
      line = document.createElement("p");
      line.setAttribute("role", "status");
      const bar = document.createElement("div");
      bar.className = "progress";
      bar.append(document.createElement("span"));
      place.replaceChildren(line, bar);
    }
    if (line.textContent !== sentence) line.textContent = sentence;
    const bar = place.querySelector(".progress");
    bar.hidden = done === null;
    if (done !== null) bar.style.setProperty("--done", String(done));
  }

  /** Say what went wrong. */
  complain(sentence) {
    const line = document.createElement("p");
    line.setAttribute("role", "alert");
    line.textContent = sentence;
    this.place.classList.add("problem");
    this.place.replaceChildren(line);
  }

  /** Scroll to it where it is in the lower half of the screen, or beyond. */
  reveal() {
    if (this.place.getBoundingClientRect().top < innerHeight / 2) return;
    this.place.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  }
}
