/** Control for looking ahead: draw several particles per picture, and weight them by the known
 * pixels after a gap. */

const COUNTS = [1, 2, 4, 8, 16, 32, 64];
const DEFAULT_COUNT = 8;
const HINT = "Draws each picture several times side by side, and keeps the tries that fit what follows the gap.";

/** Chooses the number of particles ("tries"), and compares with and without looking ahead. */
export class LookAhead {
  /** @param {HTMLElement} container @param {() => void} onCompare draws without and with it */
  constructor(container, onCompare) {
    this.select = container.querySelector("select");
    this.button = container.querySelector("button");
    container.querySelector(".hint").textContent = HINT;
    this.container = container;
    this.wanted = DEFAULT_COUNT;
    this.select.addEventListener("change", () => {
      this.wanted = Number(this.select.value);
      this.setEnabled(this.enabled);
    });
    this.button.addEventListener("click", onCompare);
  }

  /** Offer the counts that fit into the slots, and the count of a link even if it does not. */
  setLimit(slots, linkCount = 1) {
    this.slots = slots;
    const fitting = [...COUNTS, this.wanted].filter((count) => count <= slots);
    const counts = [...new Set([...fitting, linkCount])].sort((a, b) => a - b);
    this.select.replaceChildren(...counts.map((count) =>
      new Option(count === 1 ? "off" : `${count} tries`, count)));
    this.select.value = counts.findLast((count) => count <= this.wanted);
  }

  /** Select the count of a link; off if it names none. */
  setFromLink(particles) {
    if (!this.enabled) return;
    this.wanted = Math.max(1, Number(particles) || 1);
    this.setLimit(this.slots, this.wanted); // the server explains its limit if there are too many
    this.setEnabled(true);
  }

  /** Show the control if known pixels follow the gap. */
  setEnabled(enabled) {
    this.enabled = enabled;
    this.container.hidden = !enabled;
    this.button.disabled = Number(this.select.value) === 1;
  }

  /** The request fields. */
  get fields() {
    const particles = Number(this.select.value);
    return this.enabled && particles > 1 ? { particles } : {};
  }
}

/** Return the rows to draw: one, or one without and one with looking ahead. */
export function lookaheadRows(axis, fields) {
  const { particles, ...plain } = fields;
  if (axis !== "particles" || !particles) return [{ title: null, fields }];
  return [
    { title: "Without looking ahead", fields: plain },
    { title: `Looking ahead, ${particles} tries each`, fields },
  ];
}
