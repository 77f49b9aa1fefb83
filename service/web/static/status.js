/** The lines that report how a drawing goes, with a bar where something is under way. */

import { calm } from "./player.js";

/** Says how a drawing goes. */
export class StatusPanel {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    // There from the start, so that what they come to say is read out.
    this.state = lineOf("status");
    this.bar = document.createElement("div");
    this.bar.className = "progress";
    this.bar.hidden = true;
    this.bar.append(document.createElement("span"));
    place.replaceChildren(this.state, this.bar);
  }

  /** Say nothing. */
  clear() {
    this.state.textContent = "";
    this.bar.hidden = true;
    this.retract();
  }

  /** Take back what was said to be wrong. */
  retract() {
    this.place.querySelector("[role=alert]")?.remove();
  }

  /** Say what went wrong. */
  complain(sentence) {
    this.clear();
    const line = lineOf("alert");
    line.textContent = sentence;
    this.place.prepend(line);
  }

  /** Say how the drawing goes; `done`, 0 … 1, is how far it is. */
  tell(sentence, done = null) {
    if (this.state.textContent !== sentence) this.state.textContent = sentence;
    this.bar.hidden = done === null;
    if (done !== null) this.bar.style.setProperty("--done", String(done));
  }

  /** Scroll to it where it is in the lower half of the screen, or beyond. */
  reveal() {
    if (this.place.getBoundingClientRect().top < innerHeight / 2) return;
    this.place.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  }
}

function lineOf(role) {
  const line = document.createElement("p");
  line.setAttribute("role", role);
  return line;
}
