/** Says each text of the page in the language that its user reads, and again where that changes. */

import { device } from "./storage.js";
import { LANGUAGES, TEXTS } from "./texts.js";

const KEPT_AS = "fastovms.language";
let column = startingColumn();

/** @returns {string} the language's tag, such as "de". */
export const language = () => LANGUAGES[column].tag;

/**
 * Returns a text.
 *
 * @param {string} key in the table of texts.
 * @param {Object<string, string|number>} [values] what stands in its braces.
 */
export function say(key, values = {}) {
  const row = TEXTS[key];
  if (!row) throw new Error(`no text is called ${key}`);
  return row[column].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/**
 * Puts a text into a node, and the same in another language when that is chosen.
 *
 * @param {Element} node
 * @param {string} place "text" for its content, else an attribute.
 * @param {string} key
 * @param {Object<string, string|number>} [values]
 */
export function put(node, place, key, values = {}) {
  node.setAttribute(`data-say-${place}`, JSON.stringify([key, values]));
  write(node, place, say(key, values));
}

/** @param {string} tag one of `LANGUAGES`. */
export function choose(tag) {
  column = LANGUAGES.findIndex((one) => one.tag === tag);
  device.set(KEPT_AS, tag);
  apply(document);
  dispatchEvent(new Event("languagechosen"));
}

/**
 * Says everything below a node in the language that is chosen.
 *
 * @param {Document|Element} root
 */
export function apply(root) {
  document.documentElement.lang = language();
  for (const place of ["text", "aria-label", "title", "placeholder"]) {
    for (const node of root.querySelectorAll(`[data-say-${place}]`)) {
      const [key, values] = JSON.parse(node.getAttribute(`data-say-${place}`));
      write(node, place, say(key, values));
    }
  }
}

/**
 * Writes a number as people of the language do.
 *
 * @param {number} number
 * @param {number} [digits] behind the point, at most.
 */
export function showNumber(number, digits = 0) {
  return number.toLocaleString(language(), { maximumFractionDigits: digits });
}

function write(node, place, text) {
  if (place === "text") node.textContent = text;
  else node.setAttribute(place, text);
}

function startingColumn() {
  const wanted = [device.get(KEPT_AS), ...navigator.languages];
  for (const tag of wanted) {
    const found = LANGUAGES.findIndex((one) => tag && tag.split("-")[0] === one.tag.split("-")[0]);
    if (found >= 0) return found;
  }
  return 0;
}
