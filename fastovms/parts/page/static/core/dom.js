/** Makes and finds nodes. */

import { put } from "./language.js";

const NOTICE_TIME = 8000;

/**
 * Makes an element.
 *
 * @param {string} tag
 * @param {Object} [properties] `class`; `on`: listeners by event; `text`, `label`, `hint`: keys of the
 *   table of texts for the content, the name that assistive technology says, and the placeholder;
 *   `labelled`: such a name that is no key. Others are attributes: true = it is there, false or null =
 *   it is not.
 * @param {...(Node|string|null)} children null is left out.
 * @returns {HTMLElement}
 */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "text") put(node, "text", value);
    else if (name === "label") put(node, "aria-label", value);
    else if (name === "hint") put(node, "placeholder", value);
    else if (name === "labelled") node.setAttribute("aria-label", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/**
 * Makes a button with an icon, whose name is a key of the table of texts.
 *
 * @param {string} icon an id in `icons.js`.
 * @param {string} label
 * @param {function(Event): void} onClick
 * @param {Object} [properties] further ones, as `make` has them.
 */
export function iconButton(icon, label, onClick, properties = {}) {
  const button = make("button", { type: "button", class: "icon-button", ...properties, label, on: { click: onClick } });
  put(button, "title", label);
  button.append(drawIcon(icon));
  return button;
}

const SVG = "http://www.w3.org/2000/svg";

/** The paths of icons, each in a square of 24. */
const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  edit: "M5 19l1-4L16 5l3 3L9 18z",
  again: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
  export: "M12 15V4M8 8l4-4 4 4M5 14v5h14v-5",
  microphone: "M12 4a2 2 0 0 1 2 2v5a2 2 0 0 1-4 0V6a2 2 0 0 1 2-2zM7 11a5 5 0 0 0 10 0M12 16v4",
  speaker: "M5 10v4h3l4 4V6l-4 4zM15.5 9a4 4 0 0 1 0 6M18 6.5a8 8 0 0 1 0 11",
  image: "M4 6h16v12H4zM4 15l4-4 4 4 3-3 5 5M15 9.5h.01",
  pulse: "M3 12h4l3-7 4 14 3-7h4",
  chat: "M5 6h14v10h-8l-4 3v-3H5z",
  trash: "M6 8h12l-1 11H7zM4 8h16M10 5h4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  tokens: "M5 6h6v5H5zM13 6h6v5h-6zM5 13h4v5H5zM11 13h8v5h-8z",
  attach: "M19 11l-7 7a4 4 0 0 1-6-6l8-8a3 3 0 0 1 4 4l-8 8a1 1 0 0 1-2-2l7-7",
  wrap: "M4 6h16M4 12h13a3 3 0 0 1 0 6h-4M15 15l-3 3 3 3M4 18h4",
  clock: "M12 8v4l3 2M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  chip: "M7 7h10v10H7zM10 4v3M14 4v3M10 17v3M14 17v3M4 10h3M4 14h3M17 10h3M17 14h3",
  book: "M6 5h12v14H6zM9 9h6M9 13h6",
};

/** @param {string} name */
export function drawIcon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  svg.append(path);
  return svg;
}

/**
 * Says a sentence to those who use a screen reader.
 *
 * @param {string} sentence
 */
export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}

/**
 * Shows what has gone wrong, for some seconds.
 *
 * @param {string} sentence
 */
export function warn(sentence) {
  const notice = make("div", { class: "notice", role: "alert" }, sentence);
  document.body.append(notice);
  setTimeout(() => notice.remove(), NOTICE_TIME);
}

/** Resolves after some milliseconds. */
export function elapsed(milliseconds) {
  return new Promise((resolve) => { setTimeout(resolve, milliseconds); });
}

/**
 * Saves a text as a file.
 *
 * @param {string} name
 * @param {string} text
 */
export function saveAs(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/**
 * Copies a text. Where the page came over plain HTTP from another machine, browsers have no
 * clipboard for scripts, but still the older command.
 *
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { readonly: true, class: "off-screen" });
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/**
 * Returns a function that loads something once, and again if that has failed.
 *
 * @param {function(): Promise<void>} load
 */
export function once(load) {
  let loading = null;
  return () => (loading ??= load().catch((error) => {
    loading = null;
    throw error;
  }));
}
