/** Shows how much of the context a chat takes, and how fast an answer comes. */

import { onceAFrame } from "../answer/frame.js";
import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";

/** The share of the context from which on the user is warned. */
const NEARLY_FULL = 0.8;

export class ContextMeter {
  /**
   * @param {import("../session/chat_session.js").ChatSession} session
   * @param {function(): number|null} contextLength returns the tokens of the model's context; null = not known.
   */
  constructor(session, contextLength) {
    this.#session = session;
    this.#contextLength = contextLength;
    this.#rate = make("span");
    this.#used = make("span");
    this.#warning = make("p", { class: "nearly-full", role: "status", text: "context.nearly-full", hidden: true });
    this.node = make("div", { class: "context" }, make("p", { class: "context-numbers faint" }, this.#used, this.#rate), this.#warning);
    const draw = onceAFrame(() => this.show());
    for (const type of ["opened", "asked", "answering", "answered", "counted"]) session.addEventListener(type, draw);
  }

  #session;
  #contextLength;
  #rate;
  #used;
  #warning;

  show() {
    const { numTokens, turn } = this.#session;
    const rate = this.#session.isAnswering ? turn.answer.rate(performance.now()) : null;
    this.#rate.hidden = rate === null;
    if (rate !== null) put(this.#rate, "text", "stats.rate", { rate: showNumber(rate, rate < 100 ? 1 : 0) });
    const all = this.#contextLength();
    this.#used.hidden = !numTokens;
    const numbers = { tokens: showNumber(numTokens), all: all && showNumber(all) };
    put(this.#used, "text", all ? "context.used" : "stats.tokens", numbers);
    this.#warning.hidden = !all || numTokens < NEARLY_FULL * all;
  }
}
