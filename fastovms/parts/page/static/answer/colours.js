/** Colours code, once what does so is loaded. */

import { once } from "../core/dom.js";

/** Longer code stays plain: colours of it would take more than a frame. */
const MAX_LENGTH = 20_000;

let highlighter = null;

/** Loads the colours of code, and puts them where code is shown already. */
export const loadColours = once(async () => {
  highlighter = (await import("../vendor/highlight.min.js")).default;
  for (const code of document.querySelectorAll(".markdown pre > code")) colour(code);
});

/**
 * Shows a text as code, coloured if that is possible. What is there already stays as it is.
 *
 * @param {Element} code with the class "language-" and its language.
 * @param {string} [text]
 */
export function colour(code, text = code.textContent) {
  const made = document.createElement("code");
  made.append(...partsOf(text, languageOf(code)));
  const numKept = [...made.childNodes].findIndex((node, at) => !code.childNodes[at]?.isEqualNode(node));
  if (numKept < 0 && made.childNodes.length === code.childNodes.length) return;
  const fresh = numKept < 0 ? [] : [...made.childNodes].slice(numKept);
  while (code.childNodes.length > made.childNodes.length - fresh.length) code.lastChild.remove();
  code.append(...fresh);
}

/** Returns the nodes and texts of code. */
function partsOf(text, language) {
  if (!highlighter || text.length > MAX_LENGTH || !highlighter.getLanguage(language)) return [text];
  // Nodes of its tree need no cleaning, which takes five times as long as the colours.
  const { _emitter: tree, errorRaised } = highlighter.highlight(text, { language, ignoreIllegals: true });
  return errorRaised ? [text] : tree.root.children.map(spanOf);
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
