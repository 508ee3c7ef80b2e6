/** Shows where the time of one answer went: queue, prefill, decode, as one bar. */

import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";

/**
 * The phases of an answer.
 *
 * @typedef {Object} Phases
 * @property {number} queue milliseconds.
 * @property {number} prefill milliseconds.
 * @property {number} decode milliseconds.
 * @property {number} accepted how many tokens of the answer were accepted drafts.
 */

const NAMES = ["queue", "prefill", "decode"];

/**
 * Returns the phases that the server has measured.
 *
 * @param {Object|null} metrics of a response.
 * @returns {Phases|null}
 */
export function phasesOf(metrics) {
  if (!metrics) return null;
  const { queue_time_ms: queue, time_to_first_token_ms: prefill, generation_time_ms: decode, accepted_draft_tokens: accepted = 0 } = metrics;
  return { queue, prefill, decode, accepted };
}

/**
 * Makes the bar and its legend.
 *
 * @param {import("./statistics.js").Statistics} statistics with phases.
 */
export function timingBar({ phases, tokens, prompt, cached }) {
  const segments = NAMES.map((name) => {
    const segment = make("span", { class: `phase ${name}` });
    segment.style.flexGrow = phases[name];
    return segment;
  });
  if (phases.accepted) {
    const drafted = make("span", { class: "drafted" });
    drafted.style.width = `${Math.min(100, 100 * phases.accepted / tokens)}%`;
    segments.at(-1).append(drafted);
  }
  const details = {
    queue: null,
    prefill: ["timing.cached", { cached: showNumber(cached), prompt: showNumber(prompt) }],
    decode: ["timing.accepted", { accepted: showNumber(phases.accepted), tokens: showNumber(tokens) }],
  };
  const legend = NAMES.map((name) => {
    const time = make("dd");
    put(time, "text", ...showTime(phases[name]));
    const more = details[name] && make("dd", { class: "faint" });
    if (more) put(more, "text", ...details[name]);
    return make("div", {}, make("dt", {}, make("span", { class: `mark ${name}` }), make("span", { text: `timing.${name}` })), time, more);
  });
  return make("div", { class: "timing" }, make("div", { class: "timing-bar", "aria-hidden": "true" }, ...segments), make("dl", { class: "timing-legend" }, ...legend));
}

/** Returns the text of a time. */
function showTime(milliseconds) {
  if (milliseconds >= 1000) return ["timing.seconds", { time: showNumber(milliseconds / 1000, 2) }];
  return ["timing.milliseconds", { time: showNumber(milliseconds, milliseconds < 10 ? 1 : 0) }];
}
