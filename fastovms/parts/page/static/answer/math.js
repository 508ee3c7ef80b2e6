/**
 * Finds formulas in Markdown, and shows them as MathML: browsers lay that out without fonts and styles
 * of ours, which the page's policy would not load.
 */

const FORMS = [
  { open: "\\(", close: "\\)", isDisplay: false },
  { open: "\\[", close: "\\]", isDisplay: true },
  { open: "$$", close: "$$", isDisplay: true },
];

/** Longer formulas stay as they are written: to lay them out would take more than a frame. */
const MAX_LENGTH = 5_000;

const OPTIONS = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 };

let katex = null;

/**
 * Lets a parser of Markdown find formulas: `\(...\)` and `$...$` in a line, `\[...\]` and `$$...$$`
 * on lines of their own.
 *
 * @param {Object} markdown a MarkdownIt.
 */
export function findMath(markdown) {
  markdown.inline.ruler.before("escape", "math", inlineMath);
  markdown.block.ruler.before("fence", "math", blockMath, { alt: ["paragraph", "reference", "blockquote", "list"] });
  const written = ({ content, markup }) => `<span class="math${markup}">${markdown.utils.escapeHtml(content)}</span>`;
  markdown.renderer.rules.math_inline = (tokens, index) => written(tokens[index]);
  markdown.renderer.rules.math_block = (tokens, index) => `<p>${written(tokens[index])}</p>`;
}

/** Loads what lays formulas out, once it is needed. */
export async function loadMath() {
  await import("../vendor/katex.min.js");
  ({ katex } = globalThis);
}

/**
 * Shows the formulas below a node.
 *
 * @param {Element} node
 * @returns {boolean} whether there are some that wait for `loadMath`.
 */
export function showMath(node) {
  const formulas = node.querySelectorAll(".math");
  if (katex) for (const formula of formulas) layOut(formula);
  return !katex && formulas.length > 0;
}

/** Replaces a formula's source. What is not valid stays as it is written. */
function layOut(formula) {
  const source = formula.textContent;
  if (source.length > MAX_LENGTH) return;
  let tree;
  try {
    tree = katex.__renderToDomTree(source, { ...OPTIONS, displayMode: formula.classList.contains("display") });
  } catch {
    return;
  }
  dropStyles(tree);
  formula.replaceChildren(tree.toNode());
}

/** Takes the style attributes off, which the page's policy does not allow. */
function dropStyles({ attributes, children = [] }) {
  if (attributes) delete attributes.style;
  children.forEach(dropStyles);
}

function push(state, type, content, isDisplay) {
  const token = state.push(type, "", 0);
  token.content = content;
  token.markup = isDisplay ? " display" : "";
  return token;
}

function inlineMath(state, isSilent) {
  const { src, pos, posMax } = state;
  const form = FORMS.find(({ open }) => src.startsWith(open, pos));
  const start = pos + (form ? 2 : 1);
  let end = -1;
  if (form) end = closeOf(state, form.close, start);
  else if (src[pos] === "$") end = dollarEnd(src, start);
  const close = form?.close ?? "$";
  if (end < 0 || end + close.length > posMax || !src.slice(start, end).trim()) return false;
  if (!isSilent) push(state, "math_inline", src.slice(start, end), form?.isDisplay ?? false);
  state.pos = end + close.length;
  return true;
}

/** Returns where the next mark that closes a formula stands; -1 = nowhere, for which the text is searched once. */
function closeOf(state, close, start) {
  const unclosed = (state.unclosed ??= new Set());
  if (unclosed.has(close)) return -1;
  const end = state.src.indexOf(close, start);
  if (end < 0) unclosed.add(close);
  return end;
}

/**
 * Returns where a formula between single dollars ends; -1 = it is none, but a price or the variable of
 * a shell: what stands between has no space at either end, no digit stands before it, no digit or
 * capital follows it, and it is no prose.
 */
function dollarEnd(text, start) {
  let end = start;
  while (end < text.length && text[end] !== "$") end += text[end] === "\\" ? 2 : 1;
  const isFormula = end < text.length && /\S/.test(text[start]) && /\S/.test(text[end - 1])
    && !/\d/.test(text[start - 2] ?? "") && !/[\d_\p{Lu}]/u.test(text[end + 1] ?? "") && !isPrice(text.slice(start, end));
  return isFormula ? end : -1;
}

/** Words among amounts, such as "10 or 5", "10 y 5" and "10或5": letters that follow a space, or of scripts that formulas do not have. */
const PROSE = /[\s\u2013\u2014,;:.]["'(]?\p{L}{2,}|\d\s+\p{L}\s+\d|(?=\P{Script=Latin})(?=\P{Script=Greek})\p{L}/u;

/** Returns whether a text between dollars begins with an amount, and goes on as prose or as a list of amounts. */
function isPrice(text) {
  if (!/^[-+]?\.?\d/.test(text) || /[\\^_={}]/.test(text)) return false;
  return PROSE.test(text) || /^[\d\s.,;:&]*\s[\d\s.,;:&]*$/.test(text);
}

function blockMath(state, startLine, endLine, isSilent) {
  const begin = state.bMarks[startLine] + state.tShift[startLine];
  const form = FORMS.find(({ open, isDisplay }) => isDisplay && state.src.startsWith(open, begin));
  if (!form || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [];
  for (let line = startLine; line < endLine && state.sCount[line] >= state.blkIndent; line++) {
    const from = line === startLine ? begin + 2 : state.bMarks[line] + state.tShift[line];
    const text = state.src.slice(from, state.eMarks[line]);
    const at = text.indexOf(form.close);
    if (at < 0 && !text.trim() && line > startLine) return false;
    lines.push(at < 0 ? text : text.slice(0, at));
    if (at < 0) continue;
    if (text.slice(at + 2).trim() || !lines.join("").trim()) return false;
    if (isSilent) return true;
    state.line = line + 1;
    push(state, "math_block", lines.join("\n"), true).map = [startLine, state.line];
    return true;
  }
  return false;
}
