/** Knows the API key, which stays in this tab, and asks for it where the server needs one. */

import { make } from "./dom.js";
import { put } from "./language.js";
import { tab } from "./storage.js";

const KEPT_AS = "fastovms.key";
/** What keys of a server are made of. A request could not carry everything else. */
const VISIBLE_ASCII = "\\s*[!-~]+\\s*";
let asking = null;

/** @returns {string} the key, or "" where none was given. */
export const apiKey = () => tab.get(KEPT_AS) ?? "";

/**
 * Asks for a key. Several requests that need one at the same time ask once.
 *
 * @param {string} refused the key that the server has just refused; "" = none was sent.
 * @returns {Promise<void>} it resolves when there is another one.
 */
export function askForKey(refused) {
  if (apiKey() !== refused) return Promise.resolve();
  asking ??= new Promise((resolve) => openDialog(refused !== "", resolve)).finally(() => {
    asking = null;
  });
  return asking;
}

function openDialog(wasRefused, onGiven) {
  const field = make("input", { id: "key", type: "password", autocomplete: "off", required: true, pattern: VISIBLE_ASCII });
  const fault = make("p", { class: "fault", role: "alert" });
  if (wasRefused) put(fault, "text", "key.refused");
  const form = make("form", { method: "dialog" },
    make("h2", { text: "key.title", id: "key-title" }),
    make("p", { text: "key.why" }),
    make("label", { for: "key", text: "key.label" }), field, fault,
    make("div", { class: "row end" }, make("button", { class: "primary", text: "key.use" })));
  const dialog = make("dialog", { class: "small", "aria-labelledby": "key-title" }, form);
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  form.addEventListener("submit", () => {
    tab.set(KEPT_AS, field.value.trim());
    dialog.remove();
    onGiven();
  });
  document.body.append(dialog);
  dialog.showModal();
}
