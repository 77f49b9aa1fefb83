/** The view "Play": guess the class of a picture from its upper half, against the model. */

import { describeError, isUnavailable, scoreImages } from "./api.js";
import { parseSeed, randomSeed } from "./fields.js";
import { drawnAs, formatPercent } from "./format.js";
import { blankPicture, checkShape, pixelCount, toCanvas, toPng } from "./pixels.js";
import { Player, reducedMotion } from "./player.js";
import { shareLink } from "./share.js";
import { followGeneration } from "./stream.js";

const ROUNDS = 5;
const SECONDS_PER_IMAGE = 6;
const byId = (id) => document.getElementById(id);

/** A game of five rounds, one picture each. */
export class PlayView {
  /** @param {object} page the `Page` of app.js */
  constructor(page) {
    this.page = page;
    this.player = new Player(byId("play-canvas"));
    this.view = byId("play");
    this.choices = byId("play-choices");
    byId("play-next").addEventListener("click", () => this.nextRound());
    byId("play-again").addEventListener("click", () => this.startGame(randomSeed()));
    byId("play-share").addEventListener("click", () => this.share());
  }

  /** Switch to a model, with a button per class. */
  setModel(model) {
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
    this.player.reset(model);
    this.at = -1; // no game
    this.hideRecap();
  }

  hideRecap() {
    for (const id of ["play-squares", "play-recap"]) byId(id).hidden = true;
  }

  /** Start the game of a link, or a new one. */
  open(fields) {
    return this.startGame(parseSeed(fields) ?? randomSeed());
  }

  /** Show an error instead of a game. */
  showError(text) {
    this.setModel(this.model);
    this.setButtons({ over: true });
    this.setStatus(text);
  }

  /** Draw five pictures; their seeds choose their classes. */
  async startGame(seed) {
    const { model } = this;
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    Object.assign(this, { seed, rounds: [], at: -1, playerScore: 0, modelScore: 0 });
    this.page.setLink("play", { model: model.id, seed }, { push: true });
    this.setButtons({});
    this.hideRecap();
    this.setStatus("");
    if (!model.classes.length) {
      this.setStatus("This model draws without classes, so there is nothing to guess. Choose another model.");
      return;
    }
    this.setStatus("Drawing five pictures …");
    this.rounds = Array.from({ length: ROUNDS }, () => ({ picture: blankPicture(model), drawn: 0 }));
    this.nextRound();
    const { maxImages } = this.page; // of one request
    try {
      for (let first = 0; first < ROUNDS; first += maxImages) {
        const n = Math.min(maxImages, ROUNDS - first);
        await followGeneration(
          { fields: { model: model.id, seed: seed + first, n, label: "random" } },
          (event) => this.handleEvent(event, this.rounds.slice(first)),
          (text) => signal.aborted || this.rounds[this.at].modelGuess || this.setStatus(text),
          signal,
        );
      }
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
  }

  /** Handle an event of the stream that draws the pictures of `rounds`. */
  handleEvent({ name, data }, rounds) {
    if (name === "started") {
      checkShape(data, this.model);
      data.images.forEach(({ label }, k) => { rounds[k].label = label; });
    } else if (name === "pixels") {
      for (const { index, position, values } of data.updates) {
        const round = rounds[index];
        round.picture.values.set(values, position * this.model.channels);
        round.drawn = Math.max(round.drawn, position + values.length / this.model.channels);
      }
      this.showAvailable();
    }
  }

  /** True if nothing has the focus, or only a disabled button. */
  get unfocused() {
    const { activeElement } = document;
    return activeElement === document.body || activeElement.disabled;
  }

  fail(error) {
    this.abort.abort(error); // cancels all requests of the game
    this.setStatus(describeError(error));
    this.setButtons({ over: true });
  }

  /** Show the upper half of the next picture, as it is drawn. */
  nextRound() {
    const { model, player } = this;
    this.at += 1;
    player.stop();
    player.reset(model);
    player.rate = reducedMotion.matches ? Infinity : pixelCount(model) / SECONDS_PER_IMAGE;
    player.canvas.ariaLabel = `The upper half of picture ${this.at + 1}`;
    for (const button of this.choices.children) button.classList.remove("right", "wrong");
    if (this.at) this.setStatus("Drawing the next one …");
    this.setButtons({});
    this.showAvailable();
  }

  /** Show the pixels received: only the upper half until the visitor has guessed. */
  showAvailable() {
    const { model, player } = this;
    const round = this.rounds[this.at];
    const half = model.width * Math.floor(model.height / 2);
    const end = round.answer ? round.drawn : Math.min(round.drawn, half);
    const shown = player.available * model.channels;
    if (end > player.available) {
      player.write(player.available, round.picture.values.subarray(shown, end * model.channels));
    }
    if (round.modelGuess || round.drawn < half) return;
    round.modelGuess = this.fetchModelGuess(round);
    round.modelGuess.catch(() => {}); // handled in guess()
    this.setStatus(`Picture ${this.at + 1} of ${ROUNDS}. What will it be?`);
    this.setButtons({ guess: true });
  }

  /** Return the model's guess: the class that gives the upper half the fewest bits. */
  async fetchModelGuess(round, signal = this.abort.signal) {
    const { model } = this;
    const half = model.width * Math.floor(model.height / 2);
    // Shown only once the visitor has guessed and waits for the model.
    const onStatus = (text) => round.answer && this.setStatus(`${round.answer} ${text}`);
    const png = await toPng(round.picture); // the lower half cannot affect the bits of the upper one
    const costs = [];
    for (const label of model.classes) { // one at a time, to leave the server to other visitors
      const [{ pixel_bits: bits }] = await scoreImages(model, png, label, signal, onStatus);
      costs.push(bits.slice(0, half).reduce((sum, cost) => sum + cost, 0));
    }
    const least = Math.min(...costs);
    const weights = costs.map((bits) => 2 ** (least - bits));
    return {
      label: model.classes[costs.indexOf(least)],
      probability: 1 / weights.reduce((sum, weight) => sum + weight, 0),
    };
  }

  /** Accept the visitor's guess, show the whole picture, then the model's guess. */
  async guess(label) {
    const { at, player, abort } = this;
    const round = this.rounds[at];
    this.setButtons({});
    player.canvas.ariaLabel = `Picture ${at + 1}, ${drawnAs(round.label)}`;
    if (label === round.label) this.playerScore += 1;
    const answer = label === round.label
      ? `Right, it was ${drawnAs(round.label)}.`
      : `You said ${label}; it was ${drawnAs(round.label)}.`;
    for (const button of this.choices.children) {
      button.classList.toggle("right", button.textContent === round.label);
      button.classList.toggle("wrong", button.textContent === label && label !== round.label);
    }
    round.answer = answer;
    this.showAvailable();
    this.setStatus(`${answer} The model is thinking …`);
    try {
      const { label: modelLabel, probability } = await round.modelGuess
        .catch((error) => {
          if (!isUnavailable(error)) throw error;
          return this.fetchModelGuess(round, abort.signal); // try again, with status messages now
        });
      if (abort.signal.aborted) return;
      Object.assign(round, { guess: label, modelLabel, probability });
      if (modelLabel === round.label) this.modelScore += 1;
      this.setStatus(`${answer} From the same half, the model says ${modelLabel} `
        + `(${formatPercent(probability)} sure).`);
    } catch (error) {
      if (!abort.signal.aborted) this.fail(error);
      return;
    }
    const over = at === ROUNDS - 1;
    if (over) this.showRecap();
    this.setButtons({ next: !over, over, share: over });
    byId("play-score").textContent =
      `You ${this.playerScore}, the model ${this.modelScore}, of ${at + 1}.`;
    if (this.unfocused) {
      byId(over ? "play-share" : "play-next").focus();
    }
  }

  /** The result to copy: five squares, green where the visitor was right. */
  get squares() {
    return this.rounds.map(({ guess, label }) => (guess === label ? "🟩" : "🟥")).join("");
  }

  /** Show all pictures with both answers. */
  showRecap() {
    byId("play-squares").replaceChildren(...this.rounds.map(({ guess, label }, k) => {
      const square = document.createElement("span");
      const right = guess === label;
      square.className = right ? "right" : "wrong";
      square.setAttribute("role", "img");
      square.ariaLabel = `Picture ${k + 1}: ${right ? "right" : "wrong"}`;
      square.textContent = right ? "✓" : "✗";
      return square;
    }));
    byId("play-recap").replaceChildren(...this.rounds.map((round) => {
      const item = document.createElement("li");
      const text = document.createElement("span");
      const mark = (answer) => `${answer} ${answer === round.label ? "✓" : "✗"}`;
      text.textContent = `It was ${drawnAs(round.label)}. You: ${mark(round.guess)}. `
        + `The model: ${mark(round.modelLabel)}, `
        + `${formatPercent(round.probability)} sure.`;
      item.append(toCanvas(round.picture), text);
      return item;
    }));
    for (const id of ["play-squares", "play-recap"]) byId(id).hidden = false;
  }

  /** Show or enable the buttons of the current state; keep the focus among them. */
  setButtons({ guess = false, next = false, over = false, share = false }) {
    this.hadFocus ||= this.view.contains(document.activeElement); // hidden buttons lose the focus
    for (const button of this.choices.children) button.disabled = !guess;
    byId("play-next").hidden = !next;
    byId("play-again").hidden = !over;
    byId("play-share").hidden = !share;
    if (this.at < 0) byId("play-score").textContent = "";
    if (!guess) return;
    if (this.hadFocus && this.unfocused) this.choices.firstElementChild.focus();
    this.hadFocus = false;
  }

  setStatus(text) {
    byId("play-status").textContent = text;
  }

  /** Share the score, with a link to the same five pictures. */
  async share() {
    const text = `${this.squares} From the upper half, I guessed ${this.playerScore} of ${ROUNDS} pictures; the model `
      + `that drew them guessed ${this.modelScore}. Your turn:`;
    const link = { view: "play", fields: { model: this.model.id, seed: this.seed } };
    if (await shareLink(link, text)) this.setStatus("Result copied, with a link to the same pictures.");
  }
}
