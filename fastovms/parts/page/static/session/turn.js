/** What is asked and not yet part of the conversation: it runs, or has failed. */

import { AnswerState } from "./answer_state.js";

/** Status of a request to stop an answer that has ended meanwhile. */
const HAS_ENDED = 400;

export class Turn {
  /** The chat that it belongs to; null = it has not begun. */
  chat = null;
  /** Whether the connection is lost at the moment. */
  isLost = false;
  /** Whether the user has asked to stop it. */
  isStopping = false;
  #isKnown = false;
  #store;
  #onChange;

  /**
   * @param {Object[]} input items.
   * @param {number|null} startedAt milliseconds; null = not known.
   * @param {Object} store that keeps chats.
   * @param {function(): void} onChange
   */
  constructor(input, startedAt, store, onChange) {
    this.input = input;
    this.answer = new AnswerState(startedAt);
    this.#store = store;
    this.#onChange = onChange;
  }

  /** Notes that the server knows the answer, so that it can stop it. */
  becomeKnown() {
    if (this.#isKnown) return;
    this.#isKnown = true;
    if (this.isStopping) this.#cancel();
  }

  /**
   * Stops the answer: at once, or when the server knows it.
   *
   * @throws {import("../core/server.js").ServerError} the server could not be asked, or has refused.
   */
  async stop() {
    if (this.isStopping) return;
    this.isStopping = true;
    this.#onChange();
    if (this.#isKnown) await this.#cancel();
  }

  async #cancel() {
    try {
      await this.#store.stop(this.chat);
    } catch (error) {
      if (error.status === HAS_ENDED) return;
      this.isStopping = false; // the user may try again
      this.#onChange();
      throw error;
    }
  }
}
