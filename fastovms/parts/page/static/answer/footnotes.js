/** Finds footnotes in Markdown: `[^name]` in a text, and `[^name]: ...` on lines of their own. */

import { make } from "../core/dom.js";
import { put } from "../core/language.js";

const DEFINITION = /^\[\^([^\]\s]{1,100})\]:[ \t]*(.*)$/;
const REFERENCE = /\[\^([^\]\s]{1,100})\]/y;

/**
 * Lets a parser of Markdown find footnotes. They are numbered in the order in which the text refers
 * to them; `env.footnotes` has the numbers by name, and `env.numNumbered` says how many have one.
 *
 * @param {Object} markdown a MarkdownIt.
 */
export function findFootnotes(markdown) {
  markdown.block.ruler.before("reference", "footnote", definition, { alt: ["paragraph", "reference"] });
  markdown.inline.ruler.before("link", "footnote", reference);
  const written = (name, env) => `<sup class="footnote-number">${numberOf(env, name)}</sup>`;
  markdown.renderer.rules.footnote_reference = (tokens, index, options, env) => written(tokens[index].content, env);
  markdown.renderer.rules.footnote_open = (tokens, index, options, env) => `<p class="footnote">${written(tokens[index].content, env)} `;
  markdown.renderer.rules.footnote_close = () => "</p>";
}

/**
 * Lets the numbers below a node lead from a text to its footnote, and back.
 *
 * @param {Element} node
 */
export function linkFootnotes(node) {
  for (const number of node.querySelectorAll(".footnote-number")) {
    const isNote = number.parentElement.classList.contains("footnote");
    const button = make("button", { type: "button", on: { click: () => jump(button, isNote) } }, number.textContent);
    put(button, "aria-label", isNote ? "answer.from-footnote" : "answer.to-footnote", { number: number.textContent });
    number.replaceChildren(button);
  }
}

/** Moves the focus to the number of the footnote, or to the first one that refers to it. */
function jump(from, isNote) {
  const all = [...from.closest(".markdown").querySelectorAll(".footnote-number button")];
  const found = all.find((one) => one.textContent === from.textContent && Boolean(one.closest(".footnote")) !== isNote);
  found?.scrollIntoView({ block: "nearest" });
  found?.focus();
}

function numberOf(env, name) {
  const { footnotes, numNumbered = 0 } = env;
  if (!footnotes.get(name)) {
    env.numNumbered = numNumbered + 1;
    footnotes.set(name, env.numNumbered);
  }
  return footnotes.get(name);
}

function lineAt(state, line) {
  return state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
}

function definition(state, startLine, endLine, isSilent) {
  const found = state.sCount[startLine] - state.blkIndent < 4 && DEFINITION.exec(lineAt(state, startLine));
  if (!found) return false;
  if (isSilent) return true;
  const [, name, first] = found;
  const lines = [first];
  let line = startLine + 1;
  for (; line < endLine && !state.isEmpty(line) && !DEFINITION.test(lineAt(state, line)); line++) lines.push(lineAt(state, line));
  (state.env.footnotes ??= new Map()).set(name, 0);
  const open = state.push("footnote_open", "p", 1);
  open.content = name;
  open.map = [startLine, line];
  const text = state.push("inline", "", 0);
  text.content = lines.join("\n").trim();
  text.map = open.map;
  text.children = [];
  state.push("footnote_close", "p", -1);
  state.line = line;
  return true;
}

function reference(state, isSilent) {
  REFERENCE.lastIndex = state.pos;
  const [whole, name] = REFERENCE.exec(state.src) ?? [];
  if (!whole || state.pos + whole.length > state.posMax || !state.env.footnotes?.has(name)) return false;
  if (!isSilent) {
    numberOf(state.env, name);
    state.push("footnote_reference", "", 0).content = name;
  }
  state.pos += whole.length;
  return true;
}
