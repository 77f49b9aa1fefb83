/** Status and error messages of a drawing, with a progress bar. */

import { reducedMotion } from "./player.js";

/** Shows the progress of a drawing, or its error. */
export class StatusPanel {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    // Created at once, because screen readers announce only changes of an existing live region.
    this.line = createLine("status");
    this.bar = document.createElement("div");
    this.bar.className = "progress";
    this.bar.hidden = true;
    this.bar.append(document.createElement("span"));
    element.replaceChildren(this.line, this.bar);
  }

  /** Remove the status, the error and the progress bar. */
  clear() {
    this.line.textContent = "";
    this.bar.hidden = true;
    this.clearError();
  }

  /** Remove the error. */
  clearError() {
    this.element.querySelector("[role=alert]")?.remove();
  }

  /** Show an error instead of the status. */
  showError(text) {
    this.clear();
    const line = createLine("alert");
    line.textContent = text;
    this.element.prepend(line);
  }

  /**
   * Show the status.
   *
   * @param {string} text
   * @param {number | null} progress from 0 to 1; null hides the progress bar
   */
  show(text, progress = null) {
    if (this.line.textContent !== text) this.line.textContent = text;
    this.bar.hidden = progress === null;
    if (progress !== null) this.bar.style.setProperty("--done", String(progress));
  }

  /** Scroll the panel, or an element above it, to the top unless the panel is in the upper half. */
  scrollIntoView(element = this.element) {
    const { top } = this.element.getBoundingClientRect();
    if (top >= 0 && top < innerHeight / 2) return;
    const behavior = reducedMotion.matches ? "auto" : "smooth";
    element.scrollIntoView({ behavior, block: "start" });
  }
}

function createLine(role) {
  const line = document.createElement("p");
  line.setAttribute("role", role);
  return line;
}
