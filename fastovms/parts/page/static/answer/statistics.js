/** Tells under an answer what it took: tokens a second, time to first token, cached tokens. */

import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";
import { device } from "../core/storage.js";
import { phasesOf } from "./timing_bar.js";

const KEPT_AS = "fastovms.statistics";
const MAX_KEPT = 500;

/**
 * What an answer took.
 *
 * @typedef {Object} Statistics
 * @property {number} tokens
 * @property {number} prompt tokens of the prompt.
 * @property {number} cached how many of those were cached.
 * @property {number|null} [firstToken] seconds.
 * @property {number|null} [rate] tokens a second.
 * @property {import("./timing_bar.js").Phases|null} [phases] where the time went.
 */

/**
 * Returns what an answer took, as far as it is known.
 *
 * @param {import("../session/answer_state.js").AnswerState} answer
 * @returns {Statistics|null}
 */
export function statisticsOf(answer) {
  const { usage } = answer;
  if (!usage) return null;
  return {
    tokens: usage.output_tokens,
    prompt: usage.input_tokens,
    cached: usage.input_tokens_details?.cached_tokens ?? 0,
    ...answer.times(),
    phases: phasesOf(answer.metrics),
  };
}

/**
 * Keeps what an answer took on this device, for when its chat is opened again: the conversation has
 * its text alone.
 *
 * @param {string} itemId of the answer's last item.
 * @param {Statistics} statistics
 */
export function keepStatistics(itemId, statistics) {
  const kept = Object.entries({ ...readKept(), [itemId]: statistics }).slice(-MAX_KEPT);
  device.set(KEPT_AS, JSON.stringify(Object.fromEntries(kept)));
}

/** Returns what was kept of an answer, or null. */
export function keptStatistics(itemId) {
  return readKept()[itemId] ?? null;
}

/**
 * Makes the line.
 *
 * @param {Statistics} statistics
 */
export function statisticsLine(statistics) {
  const { tokens, prompt, cached, firstToken, rate } = statistics;
  const parts = [];
  if (rate) parts.push(["stats.rate", { rate: showNumber(rate, rate < 100 ? 1 : 0) }]);
  if (firstToken !== undefined && firstToken !== null) parts.push(["stats.first", { seconds: showNumber(firstToken, 2) }]);
  parts.push(["stats.tokens", { tokens: showNumber(tokens) }]);
  parts.push(["stats.cached", { cached: showNumber(cached), prompt: showNumber(prompt) }]);
  const line = make("p", { class: "statistics" });
  for (const [key, values] of parts) {
    const part = make("span");
    put(part, "text", key, values);
    line.append(part);
  }
  return line;
}

function readKept() {
  try {
    return JSON.parse(device.get(KEPT_AS) ?? "{}");
  } catch {
    return {};
  }
}
