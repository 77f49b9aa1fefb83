/** The view "Play": guessed from its upper half, what will it be? You against the model. */

import { explain, isLost, post, score } from "./api.js";
import { shareLink } from "./share.js";
import { noSeed, randomSeed, seedOf } from "./fields.js";
import { area, blank, checkShape, toPng } from "./pixels.js";
import { Player, calm } from "./player.js";
import { follow } from "./stream.js";
import { percent } from "./format.js";

const ROUNDS = 5;
const SECONDS = 6; // for a whole picture
const byId = (id) => document.getElementById(id);

/** Five pictures, each shown down to its middle. */
export class PlayView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.player = new Player(byId("play-canvas"));
    this.view = byId("play");
    this.choices = byId("play-choices");
    byId("play-next").addEventListener("click", () => this.next());
    byId("play-again").addEventListener("click", () => this.begin(randomSeed()));
    byId("play-share").addEventListener("click", () => this.share());
  }

  /** Take a model: its classes are what may be guessed. */
  use(model) {
    this.model = model;
    this.abort?.abort();
    this.choices.replaceChildren(...model.classes.map((label) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => this.guess(label));
      return button;
    }));
    this.player.stop();
    this.player.begin(model);
  }

  /** Play the round of a link, or a new one. */
  open(fields) {
    const seed = seedOf(fields);
    if (!fields.has("seed") || seed !== null) return this.begin(seed ?? randomSeed());
    this.use(this.model);
    this.offer({ over: true });
    this.say(noSeed(fields.get("seed")));
    return null;
  }

  /** Have five pictures drawn, of classes that their seeds choose. */
  async begin(seed) {
    const { model } = this;
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    Object.assign(this, { seed, rounds: [], at: -1, right: 0, theirs: 0 });
    this.page.link("play", { model: model.id, seed });
    this.offer({});
    this.say("");
    if (!model.classes.length) {
      this.say("This model draws without classes, so there is nothing to guess. Choose another model.");
      return;
    }
    this.say("Drawing five pictures …");
    this.rounds = Array.from({ length: ROUNDS }, () => ({ picture: blank(model), drawn: 0 }));
    this.next();
    const asked = { model: model.id, seed, n: ROUNDS, label: "random", stream: true };
    try {
      await follow(() => post("v1/samples", asked, signal), (event) => this.hear(event),
        (sentence) => signal.aborted || this.rounds[this.at].model || this.say(sentence), signal);
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
  }

  /** Take in an event of the drawing of all five. */
  hear({ name, data }) {
    if (name === "started") {
      checkShape(data, this.model);
      data.images.forEach(({ label }, k) => { this.rounds[k].label = label; });
    } else if (name === "pixels") {
      for (const { index, position, values } of data.updates) {
        const round = this.rounds[index];
        round.picture.values.set(values, position * this.model.channels);
        round.drawn = Math.max(round.drawn, position + values.length / this.model.channels);
      }
      this.showMore();
    }
  }

  /** Whether the focus is nowhere, or at a choice that is disabled. */
  get unfocused() {
    const { activeElement } = document;
    return activeElement === document.body || activeElement.disabled;
  }

  fail(error) {
    this.abort.abort(error); // whatever else is asked for is of no use
    this.say(explain(error));
    this.offer({ over: true });
  }

  /** Show the upper half of the next picture, as it comes. */
  next() {
    const { model, player } = this;
    this.at += 1;
    player.stop();
    player.begin(model);
    player.rate = calm.matches ? Infinity : area(model) / SECONDS;
    player.canvas.ariaLabel = `The upper half of picture ${this.at + 1}`;
    if (this.at) this.say("Drawing the next one …");
    this.offer({});
    this.showMore();
  }

  /** Show what there is of the picture: of its upper half, until it is guessed. */
  showMore() {
    const { model, player } = this;
    const round = this.rounds[this.at];
    const half = model.width * Math.floor(model.height / 2);
    const end = round.told ? round.drawn : Math.min(round.drawn, half);
    const shown = player.available * model.channels;
    if (end > player.available) {
      player.write(player.available, round.picture.values.subarray(shown, end * model.channels));
    }
    if (round.model || round.drawn < half) return;
    round.model = this.ask(round);
    round.model.catch(() => {}); // told when it is looked at
    this.say(`Picture ${this.at + 1} of ${ROUNDS}. What will it be?`);
    this.offer({ guess: true });
  }

  /** Have the model guess: the class under which the upper half costs it the fewest bits. */
  async ask(round, signal = this.abort.signal) {
    const { model } = this;
    const half = model.width * Math.floor(model.height / 2);
    const say = (sentence) => round.told && this.say(`${round.told} ${sentence}`); // it is waited for
    const png = await toPng(round.picture); // whose lower half makes no difference to the upper one
    const costs = [];
    for (const label of model.classes) { // one by one: others play too, and you are thinking
      const [{ pixel_bits: each }] = await score(model, png, label, signal, say);
      costs.push(each.slice(0, half).reduce((sum, bits) => sum + bits, 0));
    }
    const least = Math.min(...costs);
    const weights = costs.map((bits) => 2 ** (least - bits));
    return {
      label: model.classes[costs.indexOf(least)],
      share: 1 / weights.reduce((sum, weight) => sum + weight, 0),
    };
  }

  /** Take a person's guess, show the rest, and tell the model's. */
  async guess(label) {
    const { at, player, abort } = this;
    const round = this.rounds[at];
    this.offer({});
    player.canvas.ariaLabel = `Picture ${at + 1}, meant to be ${round.label}`;
    if (label === round.label) this.right += 1;
    const yours = label === round.label
      ? `Right, it is meant to be ${round.label}.` : `You said ${label}; it is meant to be ${round.label}.`;
    round.told = yours;
    this.showMore();
    this.say(`${yours} The model is thinking …`);
    try {
      const { label: told, share } = await round.model
        .catch((error) => {
          if (!isLost(error)) throw error;
          return this.ask(round, abort.signal); // lost while nobody waited for it
        });
      if (abort.signal.aborted) return;
      if (told === round.label) this.theirs += 1;
      this.say(`${yours} From the same half, the model says ${told} (${percent(share)} sure).`);
    } catch (error) {
      if (!abort.signal.aborted) this.fail(error);
      return;
    }
    const over = at === ROUNDS - 1;
    this.offer({ next: !over, over, share: over });
    byId("play-score").textContent = `You ${this.right}, the model ${this.theirs}, of ${at + 1}.`;
    if (this.unfocused) {
      byId(over ? "play-share" : "play-next").focus();
    }
  }

  /** Offer what can be done now. */
  offer({ guess = false, next = false, over = false, share = false }) {
    this.pressed ||= this.view.contains(document.activeElement); // it is to lose the focus
    for (const button of this.choices.children) button.disabled = !guess;
    byId("play-next").hidden = !next;
    byId("play-again").hidden = !over;
    byId("play-share").hidden = !share;
    if (this.at < 0) byId("play-score").textContent = "";
    if (!guess) return;
    if (this.pressed && this.unfocused) this.choices.firstElementChild.focus();
    this.pressed = false;
  }

  say(sentence) {
    byId("play-status").textContent = sentence;
  }

  /** Hand the score on, with the same five pictures. */
  async share() {
    const text = `From the upper half, I guessed ${this.right} of ${ROUNDS} pictures; the model that `
      + `drew them guessed ${this.theirs}. Your turn:`;
    const link = { view: "play", fields: { model: this.model.id, seed: this.seed } };
    if (await shareLink(link, text)) this.say("Score copied, with a link to the same pictures.");
  }
}
