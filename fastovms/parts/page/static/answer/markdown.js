/**
 * Shows Markdown that a model has written, which may be hostile: no HTML of it is let through, what is
 * made of it goes through DOMPurify, and nothing in it loads anything.
 */

import { announce, copyText, iconButton, make, once } from "../core/dom.js";
import { say } from "../core/language.js";
import { colour, languageOf } from "./colours.js";
import { findFootnotes, linkFootnotes } from "./footnotes.js";
import { findMath, loadMath, showMath } from "./math.js";

const PURE = {
  RETURN_TRUSTED_TYPE: true,
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["class", "href", "rel", "start", "target"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["rel", "start", "target"], // whose values are no addresses
};

const OPTIONS = { html: false, linkify: true, breaks: false };

/** The steps in which the parser finds blocks, and those in which it reads the lines of blocks that are drawn. */
const BLOCK_STEPS = ["normalize", "block", "strip_references"];
const LINE_STEPS = ["inline", "linkify", "text_join", "tasks"];

let blockParser = null;
let lineParser = null;
let purify = null;

/** What each block that is shown was drawn from. */
const drawn = new WeakMap();

/** What the blocks below a node refer to. */
const defined = new WeakMap();

/** How to show the texts that wait for what reads Markdown, by the nodes that they are below. */
const waiting = new Map();

/** Loads what reads Markdown, and shows the texts that wait for it. */
export const loadMarkdown = once(async () => {
  const [{ default: MarkdownIt }] = await Promise.all([import("../vendor/markdown-it.esm.min.mjs"), import("../vendor/purify.min.js")]);
  purify = globalThis.DOMPurify;
  blockParser = parser(MarkdownIt, BLOCK_STEPS);
  lineParser = parser(MarkdownIt, LINE_STEPS);
  for (const [node, show] of waiting) {
    node.replaceChildren();
    node.classList.remove("plain");
    show();
  }
  waiting.clear();
});

/** Shows the formulas that wait for what lays them out. */
const loadFormulas = once(async () => {
  await loadMath();
  for (const block of document.querySelectorAll(".waits-for-math")) {
    block.classList.remove("waits-for-math");
    showMath(block);
  }
});

/** Makes a parser that takes some steps. */
function parser(MarkdownIt, steps) {
  const made = new MarkdownIt(OPTIONS);
  const { core, renderer, utils } = made;
  renderer.rules.link_open = (tokens, index, options, env, self) => {
    tokens[index].attrSet("target", "_blank");
    tokens[index].attrSet("rel", "noopener noreferrer");
    return self.renderToken(tokens, index, options);
  };
  // A picture would be loaded from wherever the text says: it is a link to it.
  renderer.rules.image = (tokens, index) => {
    const source = tokens[index].attrGet("src");
    const text = tokens[index].content || source;
    return `<a href="${utils.escapeHtml(source)}" target="_blank" rel="noopener noreferrer">${utils.escapeHtml(text)}</a>`;
  };
  findMath(made);
  findFootnotes(made);
  core.ruler.push("tasks", findTasks);
  core.ruler.enableOnly(steps);
  // The policy of the page allows no styles in attributes, as which columns' alignments come.
  for (const cell of ["th_open", "td_open"]) {
    renderer.rules[cell] = (tokens, index, options, env, self) => {
      const align = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "");
      tokens[index].attrs = align ? [["class", `align-${align[1]}`]] : null;
      return self.renderToken(tokens, index, options);
    };
  }
  return made;
}

/** Shows that a list's item which begins with "[x]" is a task that is done. */
function findTasks({ tokens }) {
  tokens.forEach(({ type, children }, index) => {
    const isFirst = type === "inline" && tokens[index - 1].type === "paragraph_open" && tokens[index - 2]?.type === "list_item_open";
    const found = isFirst && /^\[([ xX])\] /.exec(children[0]?.content ?? "");
    if (!found) return;
    tokens[index - 2].attrJoin("class", "task");
    children[0].content = `${found[1] === " " ? "☐" : "☑"} ${children[0].content.slice(found[0].length)}`;
  });
}

/**
 * Shows a text below a node. What is there already stays as it is, so that a text that grows costs
 * its last paragraph, item or row, and what a reader has selected stays selected.
 *
 * @param {Element} node
 * @param {string} text
 * @param {{breaks?: boolean}} [form] whether line breaks within a paragraph stay, as people mean them.
 */
export function showMarkdown(node, text, { breaks = false } = {}) {
  if (!purify) {
    node.textContent = text;
    node.classList.add("plain");
    waiting.set(node, () => showMarkdown(node, text, { breaks }));
    loadMarkdown().catch(() => {}); // it stays as it is written
    return;
  }
  const env = {};
  const tokens = blockParser.parse(text, env);
  const { references = {}, footnotes } = env;
  // Footnotes have their numbers from the whole text.
  if (footnotes) readLines(tokens, env);
  const definitions = definitionsOf(node, JSON.stringify([references, [...footnotes ?? []]]));
  const html = (some) => {
    if (!footnotes) readLines(some, env);
    return lineParser.renderer.render(some, { ...lineParser.options, breaks }, env);
  };
  const blocks = groups(tokens).map(blockOf);
  blocks.forEach((block, index) => showBlock(node, node.children[index], block, definitions, html));
  while (node.children.length > blocks.length) node.lastElementChild.remove();
}

/**
 * Shows a block, as far as it is not yet shown.
 *
 * @param {Element} node that the blocks are below.
 * @param {Element|undefined} there what is shown in the place of the block.
 * @param {Block} block
 * @param {string} definitions that the block may refer to.
 * @param {function(Object[]): string} html makes HTML of tokens.
 */
function showBlock(node, there, { head, parts, tail }, definitions, html) {
  const before = drawn.get(there);
  const now = { definitions, code: codeOf(head), head: keyOf(head), parts: parts.map(keyOf) };
  const isSame = before?.head === now.head && before.definitions === definitions;
  if (!isSame && now.code && before?.code === now.code) {
    colour(there.querySelector("code"), head[0].content);
    drawn.set(there, now);
    return;
  }
  if (!isSame) {
    const made = make("div", { class: "block", dir: "auto" });
    made.append(...draw(made, html([...head, ...parts.flat(), ...tail])).childNodes);
    drawn.set(made, now);
    if (there) there.replaceWith(made);
    else node.append(made);
    return;
  }
  const changed = now.parts.findIndex((key, at) => key !== before.parts[at]);
  if (changed < 0 && now.parts.length === before.parts.length) return;
  const numKept = changed < 0 ? parts.length : changed;
  const place = placeOfParts(there);
  const lastKept = place.children[numKept - 1] ?? null;
  while (place.lastChild !== lastKept) place.lastChild.remove();
  if (changed >= 0) place.append(...placeOfParts(draw(there, html([...head, ...parts.slice(numKept).flat(), ...tail]))).childNodes);
  drawn.set(there, now);
}

/** Returns the definitions of a text as one string: the same one as before if it is equal, as it is compared for each block. */
function definitionsOf(node, found) {
  if (defined.get(node) !== found) defined.set(node, found);
  return defined.get(node);
}

/** Reads the lines of blocks: their text, links, code and formulas. */
function readLines(tokens, env) {
  const state = new lineParser.core.State("", lineParser, env);
  state.tokens = tokens;
  lineParser.core.process(state);
}

/** Returns runs of tokens that belong together: each block, item or row. */
function groups(tokens) {
  const found = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) found.push([]);
    depth += token.nesting;
    found.at(-1).push(token);
  }
  return found;
}

/**
 * A block of a text: tokens that can be drawn alone, such as items and rows, and those around them.
 *
 * @typedef {{head: Object[], parts: Object[][], tail: Object[]}} Block
 */

/** @returns {Block} */
function blockOf(tokens) {
  const { type } = tokens[0];
  const body = tokens.findIndex((token) => token.type === "tbody_open");
  let [first, last] = [tokens.length, tokens.length];
  if (["bullet_list_open", "ordered_list_open", "blockquote_open"].includes(type)) [first, last] = [1, tokens.length - 1];
  else if (type === "table_open" && body > 0) [first, last] = [body + 1, tokens.length - 2];
  return { head: tokens.slice(0, first), parts: groups(tokens.slice(first, last)), tail: tokens.slice(last) };
}

/** Returns a name of the code that a block is, if it is code between fences, or null. */
function codeOf([{ type, info }]) {
  return type === "fence" ? `code ${info}` : null;
}

/** Returns the element in which the parts of a block are. */
function placeOfParts(block) {
  return block.querySelector(":scope > .table-box > table > tbody") ?? block.firstElementChild;
}

/** Returns a text that differs for tokens that look different. */
function keyOf(tokens) {
  return tokens.map(({ type, hidden, content, markup, info, attrs }) => [type, hidden, content, markup, info, attrs].join("\0")).join("\0");
}

/** Returns an element with what HTML of a model shows, which becomes a part of a block. */
function draw(block, html) {
  const made = document.createElement("div");
  made.innerHTML = purify.sanitize(html, PURE);
  if (showMath(made)) {
    block.classList.add("waits-for-math");
    loadFormulas().catch(() => {}); // they stay as they are written
  }
  linkFootnotes(made);
  for (const code of made.querySelectorAll("pre")) {
    colour(code.firstElementChild);
    const box = boxAround(code, "code-block");
    box.dir = "ltr";
    box.prepend(codeHead(code));
    code.tabIndex = 0; // so that what is too wide can be scrolled by keys
  }
  for (const table of made.querySelectorAll("table")) boxAround(table, "table-box").tabIndex = 0;
  return made;
}

/** Makes the bar above code: its language, and buttons that wrap its lines and copy it. */
function codeHead(code) {
  const wrap = iconButton("wrap", "answer.wrap-code", () => wrapCode(document.documentElement.dataset.wrap === undefined),
    { class: "icon-button wrap-code", "aria-pressed": String(document.documentElement.dataset.wrap !== undefined) });
  const copy = iconButton("copy", "answer.copy-code", () => copyText(code.textContent).then(() => announce(say("copied"))));
  return make("div", { class: "code-head" }, make("span", {}, languageOf(code.firstElementChild)), wrap, copy);
}

/** Wraps the lines of all code, or none: what is drawn anew as an answer grows stays as it was chosen. */
function wrapCode(isWrapped) {
  document.documentElement.toggleAttribute("data-wrap", isWrapped);
  for (const button of document.querySelectorAll(".wrap-code")) button.setAttribute("aria-pressed", String(isWrapped));
}

/** Puts a node into a box of its own, and returns the box. */
function boxAround(node, name) {
  const box = document.createElement("div");
  box.className = name;
  node.replaceWith(box);
  box.append(node);
  return box;
}
