/**
 * Shows Markdown that a model has written, which may be hostile: no HTML of it is let through, what is
 * made of it goes through DOMPurify, and nothing in it loads anything.
 */

import { announce, copyText, iconButton, make, once } from "../core/dom.js";
import { say } from "../core/language.js";
import { findFootnotes, linkFootnotes } from "./footnotes.js";
import { findMath, loadMath, showMath } from "./math.js";

/** Longer code stays plain: colours of it would take more than a frame. */
const MAX_COLOURED = 20_000;

const PURE = {
  RETURN_TRUSTED_TYPE: true,
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["class", "href", "rel", "start", "target"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["rel", "start", "target"], // whose values are no addresses
};

const OPTIONS = { html: false, linkify: true, breaks: false, highlight: colour };

let markdown = null;
let purify = null;
let highlighter = null;

/** The source of each block that is shown, and for those with code that waits for colours, how to show it anew. */
const shown = new WeakMap();

/** What the blocks below a node refer to. */
const defined = new WeakMap();

/** How to show the texts that wait for what reads Markdown, by the nodes that they are below. */
const waiting = new Map();

/** Loads what reads Markdown, and shows the texts that wait for it. */
export const loadMarkdown = once(async () => {
  const [{ default: MarkdownIt }] = await Promise.all([import("../vendor/markdown-it.esm.min.mjs"), import("../vendor/purify.min.js")]);
  purify = globalThis.DOMPurify;
  markdown = parser(MarkdownIt);
  for (const [node, show] of waiting) {
    node.replaceChildren();
    node.classList.remove("plain");
    show();
  }
  waiting.clear();
});

/** Loads the colours of code, and puts them where code is shown already. */
export const loadColours = once(async () => {
  highlighter = (await import("../vendor/highlight.min.js")).default;
  for (const block of document.querySelectorAll(".uncoloured")) {
    block.classList.remove("uncoloured");
    shown.get(block)?.draw();
  }
});

/** Shows the formulas that wait for what lays them out. */
const loadFormulas = once(async () => {
  await loadMath();
  for (const block of document.querySelectorAll(".waits-for-math")) {
    block.classList.remove("waits-for-math");
    showMath(block);
  }
});

/** Makes the parser. */
function parser(MarkdownIt) {
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
 * Shows a text below a node. Blocks that are there already stay as they are, so that a text that
 * grows costs its last paragraph, and what a reader has selected stays selected.
 *
 * @param {Element} node
 * @param {string} text
 * @param {{breaks?: boolean}} [form] whether line breaks within a paragraph stay, as people mean them.
 */
export function showMarkdown(node, text, { breaks = false } = {}) {
  if (!markdown) {
    node.textContent = text;
    node.classList.add("plain");
    waiting.set(node, () => showMarkdown(node, text, { breaks }));
    loadMarkdown().catch(() => {}); // it stays as it is written
    return;
  }
  const env = {};
  const options = { ...markdown.options, breaks };
  const blocks = split(markdown.parse(text, env), text);
  const definitions = definitionsOf(node, env);
  blocks.forEach((block, index) => {
    const there = node.children[index];
    const before = there && shown.get(there);
    if (before && before.definitions === definitions && before.source === block.source) return;
    const made = document.createElement("div");
    const draw = () => drawBlock(made, block.tokens, options, env);
    const waits = !highlighter && block.tokens.some((token) => token.type === "fence");
    shown.set(made, { definitions, source: block.source, draw });
    made.dir = "auto";
    made.className = waits ? "block uncoloured" : "block";
    draw();
    if (there) there.replaceWith(made);
    else node.append(made);
  });
  while (node.children.length > blocks.length) node.lastElementChild.remove();
}

/** Returns what blocks refer to, as one text; the same one as before, if it is equal, as that is compared for each block. */
function definitionsOf(node, env) {
  const found = [Object.keys(env.references ?? {}).length, ...(env.footnotes ?? [])].join(" ");
  if (defined.get(node) !== found) defined.set(node, found);
  return defined.get(node);
}

/** Returns the top-level blocks of a text: the tokens of each, and its source. */
function split(tokens, text) {
  const lines = text.split("\n");
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push({ tokens: [], source: lines.slice(...token.map).join("\n") });
    depth += token.nesting;
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

function drawBlock(node, tokens, options, env) {
  node.innerHTML = purify.sanitize(markdown.renderer.render(tokens, options, env), PURE);
  if (showMath(node)) {
    node.classList.add("waits-for-math");
    loadFormulas().catch(() => {}); // they stay as they are written
  }
  linkFootnotes(node);
  for (const code of node.querySelectorAll("pre")) {
    const box = boxAround(code, "code-block");
    box.dir = "ltr";
    box.prepend(codeHead(code));
    code.tabIndex = 0; // so that what is too wide can be scrolled by keys
  }
  for (const table of node.querySelectorAll("table")) boxAround(table, "table-box").tabIndex = 0;
}

/** Makes the bar above code: its language, and buttons that wrap its lines and copy it. */
function codeHead(code) {
  const name = /language-(\S+)/.exec(code.firstElementChild?.className ?? "")?.[1] ?? "";
  const wrap = iconButton("wrap", "answer.wrap-code", () => wrapCode(document.documentElement.dataset.wrap === undefined),
    { class: "icon-button wrap-code", "aria-pressed": String(document.documentElement.dataset.wrap !== undefined) });
  const copy = iconButton("copy", "answer.copy-code", () => copyText(code.textContent).then(() => announce(say("copied"))));
  return make("div", { class: "code-head" }, make("span", {}, name), wrap, copy);
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

/** Returns the HTML of code; "" = as it is. */
function colour(code, name) {
  if (!highlighter || code.length > MAX_COLOURED || !highlighter.getLanguage(name)) return "";
  return highlighter.highlight(code, { language: name, ignoreIllegals: true }).value;
}
