/** Puts the events of a response together: its items as they grow, its status, its times. */

/** What each event adds to: the member of the item, of the part in it, or of neither. */
const DELTAS = {
  "response.output_text.delta": "content",
  "response.refusal.delta": "content",
  "response.reasoning_text.delta": "content",
  "response.reasoning_summary_text.delta": "summary",
  "response.function_call_arguments.delta": "arguments",
  "response.custom_tool_call_input.delta": "input",
};

/** Seconds of an answer after which its rate is told. */
const MIN_SECONDS = 0.5;

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

export class AnswerState {
  /** @type {Object[]} the items so far. */
  output = [];
  /** @type {string} the response's. */
  status = "queued";
  /** @type {string} why it has failed; "" = it has not. */
  failure = "";
  /** @type {Object|null} the tokens, at the end. */
  usage = null;
  /** @type {Object|null} the times that the server has measured, where it tells of them. */
  metrics = null;
  /** How many pieces have come, each a token but for a few. */
  numPieces = 0;
  #startedAt;
  #firstAt = null;
  #lastAt = null;

  /** @param {number|null} startedAt the time in milliseconds at which it was asked for; null = not known. */
  constructor(startedAt) {
    this.#startedAt = startedAt;
  }

  get isFinal() {
    return !["queued", "in_progress"].includes(this.status);
  }

  /**
   * Takes an event.
   *
   * @param {Object} event
   * @param {number} now milliseconds.
   */
  push(event, now) {
    const { type } = event;
    if (type in DELTAS) {
      this.#firstAt ??= now;
      this.numPieces++;
      this.#lastAt = now;
      this.#grow(this.output[event.output_index], DELTAS[type], event);
    } else if (type === "response.output_item.added" || type === "response.output_item.done") {
      this.output[event.output_index] = event.item;
    } else if (type === "response.content_part.added") {
      this.output[event.output_index].content.push({ ...event.part });
    } else if (type === "response.reasoning_summary_part.added") {
      this.output[event.output_index].summary.push({ ...event.part });
    } else if (type === "error") {
      this.failure = event.message;
    } else if (event.response) {
      this.#tell(event.response, ENDS.has(type));
    }
  }

  /**
   * Returns the times, as the server has measured them, or as they were here, for an answer that
   * was followed from its beginning.
   *
   * @returns {{firstToken: number, rate: number|null}|null} seconds, and tokens a second; null = they
   *   are not known.
   */
  times() {
    if (this.metrics) return { firstToken: this.metrics.time_to_first_token_ms / 1000, rate: this.metrics.tokens_per_second };
    if (this.#startedAt === null || this.#firstAt === null) return null;
    const seconds = (this.#lastAt - this.#firstAt) / 1000;
    const count = (this.usage?.output_tokens ?? 0) - 1;
    return { firstToken: (this.#firstAt - this.#startedAt) / 1000, rate: count > 0 && seconds > 0 ? count / seconds : null };
  }

  /**
   * Returns how many tokens a second have come so far; null = too few to tell.
   *
   * @param {number} now milliseconds.
   */
  rate(now) {
    const seconds = (now - (this.#firstAt ?? now)) / 1000;
    return seconds > MIN_SECONDS ? this.numPieces / seconds : null;
  }

  #grow(item, member, { delta, logprobs }) {
    if (!Array.isArray(item[member])) {
      item[member] += delta;
      return;
    }
    const part = item[member].at(-1);
    part.text += delta;
    if (logprobs?.length) (part.logprobs ??= []).push(...logprobs);
  }

  #tell(response, isEnd) {
    this.status = response.status;
    this.usage = response.usage ?? null;
    this.metrics = response.metrics ?? null;
    if (response.error) this.failure = response.error.message;
    if (isEnd && response.output?.length) this.output = response.output;
  }
}
