/** Colours code, once what does so is loaded. */

import { once } from "../core/dom.js";

/** Longer code stays plain: colours of it would take more than a frame. */
const MAX_LENGTH = 20_000;

let highlighter = null;

/** Loads the colours of code, and puts them where code is shown already. */
export const loadColours = once(async () => {
  highlighter = (await import("../vendor/highlight.min.js")).default;
  document.querySelectorAll(".markdown pre > code").forEach(colour);
});

/**
 * Colours code.
 *
 * @param {Element} code with the class "language-" and its language.
 */
export function colour(code) {
  const text = code.textContent;
  const language = languageOf(code);
  if (!highlighter || text.length > MAX_LENGTH || !highlighter.getLanguage(language)) return;
  // Nodes of its tree need no cleaning, which takes five times as long as the colours.
  const { _emitter: tree, errorRaised } = highlighter.highlight(text, { language, ignoreIllegals: true });
  if (!errorRaised) code.replaceChildren(...tree.root.children.map(spanOf));
}

/** Returns the name of code's language; "" = it has none. */
export function languageOf(code) {
  return /(?:^| )language-(\S+)/.exec(code.className)?.[1] ?? "";
}

/** Returns the node of a part of the code: a text, or parts of a kind such as "title.function". */
function spanOf(part) {
  if (typeof part === "string") return part;
  const span = document.createElement("span");
  span.className = `hljs-${(part.scope ?? "").split(".")[0]}`;
  span.append(...part.children.map(spanOf));
  return span;
}
