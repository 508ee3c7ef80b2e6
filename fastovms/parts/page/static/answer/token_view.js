/** Shows the tokens of an answer by their probability, and the alternatives of the one in focus. */

import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";

/** Below these probabilities a token is coloured as less likely, and less. */
const STEPS = [0.9, 0.5, 0.2, 0.05];

/**
 * Makes the view. It is one stop of the Tab key; arrows go from token to token.
 *
 * @param {Object[]} logprobs as the API tells of tokens.
 */
export function tokenView(logprobs) {
  const details = make("div", { class: "alternatives", role: "status" });
  put(details, "text", "tokens.hint");
  const tokens = logprobs.map((token, index) => {
    const node = make("span", { class: `token likely-${likelihood(token)}`, tabindex: index ? "-1" : "0", role: "button" }, token.token);
    return node;
  });
  const list = make("div", { class: "tokens", role: "group", label: "tokens.label" }, ...tokens);
  const show = (node) => details.replaceChildren(...alternatives(logprobs[tokens.indexOf(node)]));
  list.addEventListener("pointerover", ({ target }) => {
    if (tokens.includes(target)) show(target);
  });
  list.addEventListener("focusin", ({ target }) => {
    for (const node of tokens) node.tabIndex = node === target ? 0 : -1;
    show(target);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = tokens[tokens.indexOf(document.activeElement) + step];
    if (!step || !next) return;
    event.preventDefault();
    next.focus();
  });
  return make("div", { class: "token-view" }, list, details);
}

function likelihood({ logprob }) {
  const probability = Math.exp(logprob);
  return STEPS.filter((step) => probability < step).length;
}

/** Makes the rows of a token's alternatives, the chosen one among them. */
function alternatives(token) {
  const others = token.top_logprobs.length ? token.top_logprobs : [token];
  const rows = others.some((one) => one.token === token.token) ? others : [token, ...others];
  return rows.map((one) => {
    const probability = Math.exp(one.logprob);
    const bar = make("meter", { min: "0", max: "1", value: String(probability), "aria-hidden": "true" });
    return make("div", { class: one.token === token.token ? "alternative chosen" : "alternative" },
      make("code", {}, JSON.stringify(one.token).slice(1, -1)), bar,
      make("span", {}, `${showNumber(100 * probability, 2)} %`));
  });
}
