/** Looking ahead: several tries are drawn side by side, and what follows a gap decides among them. */

const TRIES = [1, 2, 4, 8, 16, 32, 64];
const USUAL = 8;
const WHY = "Draws each picture several times side by side, and keeps the tries that fit what follows the gap.";
const WHY_NOT = "Nothing you kept follows the gap, so there is nothing to look ahead to.";

/** Chooses how many tries, and whether to show both ways. */
export class LookAhead {
  /** @param {HTMLElement} place @param {() => void} compare draws without and with it */
  constructor(place, compare) {
    this.select = place.querySelector("select");
    this.button = place.querySelector("button");
    this.hint = place.querySelector(".hint");
    this.wanted = USUAL;
    this.select.addEventListener("change", () => {
      this.wanted = Number(this.select.value);
      this.offer(this.useful);
    });
    this.button.addEventListener("click", compare);
  }

  /** Offer no more tries than there are slots for, but a link's. */
  limit(slots, link = 1) {
    this.slots = slots;
    const usual = [...TRIES, this.wanted].filter((count) => count <= slots);
    const counts = [...new Set([...usual, link])].sort((a, b) => a - b);
    this.select.replaceChildren(...counts.map((count) =>
      new Option(count === 1 ? "off" : `${count} tries`, count)));
    this.select.value = counts.findLast((count) => count <= this.wanted);
  }

  /** Take a link's number; none where it names none. */
  take(particles) {
    if (!this.useful) return;
    this.wanted = Math.max(1, Number(particles) || 1);
    this.limit(this.slots, this.wanted); // what are too many, the server refuses in words
    this.offer(true);
  }

  /** Say whether something known follows the gap. */
  offer(useful) {
    this.useful = useful;
    this.select.disabled = !useful;
    this.button.disabled = !useful || Number(this.select.value) === 1;
    this.hint.textContent = useful ? WHY : WHY_NOT;
  }

  /** Give the fields of a request. */
  get fields() {
    const particles = Number(this.select.value);
    return this.useful && particles > 1 ? { particles } : {};
  }
}

/** Give the requests, one a row: as asked, or without and with looking ahead. */
export function rowsOf(by, fields) {
  const { particles, ...plain } = fields;
  if (by !== "particles" || !particles) return [{ title: null, fields }];
  return [
    { title: "Without looking ahead", fields: plain },
    { title: `Looking ahead, ${particles} tries each`, fields },
  ];
}
