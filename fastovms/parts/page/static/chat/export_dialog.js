/** Offers a chat as JSON, and its request as a command and as programs. */

import { apiKey } from "../core/api_key.js";
import { announce, copyText, iconButton, make, saveAs } from "../core/dom.js";
import { say } from "../core/language.js";
import { ROOT } from "../core/server.js";
import { asCurl, asJavaScript, asJson, asPython } from "./snippets.js";

/**
 * Opens the dialog.
 *
 * @param {Object|null} chat
 * @param {Object[]} items
 * @param {Object} request the body that asks with them as input.
 */
export function openExport(chat, items, request) {
  const forms = {
    json: () => asJson(chat, items, request),
    curl: () => asCurl(ROOT.href, request, apiKey() !== ""),
    python: () => asPython(ROOT.href, request, apiKey() !== ""),
    javascript: () => asJavaScript(ROOT.href, request, apiKey() !== ""),
  };
  const text = make("pre", { class: "snippet", tabindex: "0", label: "export.title" });
  const choice = make("select", { label: "export.form" },
    make("option", { value: "json", text: "export.json" }), make("option", { value: "curl" }, "curl"), make("option", { value: "python" }, "Python"), make("option", { value: "javascript" }, "JavaScript"));
  const show = () => { text.textContent = forms[choice.value](); };
  choice.addEventListener("change", show);
  const dialog = make("dialog", { "aria-labelledby": "export-title" },
    make("header", { class: "row" }, make("h2", { text: "export.title", id: "export-title" }), iconButton("close", "close", () => dialog.close())),
    make("div", { class: "row" }, choice,
      make("button", { type: "button", text: "chat.copy", on: { click: () => copyText(text.textContent).then(() => announce(say("copied"))) } }),
      make("button", { type: "button", text: "export.save", on: { click: () => saveAs(`chat.${ENDINGS[choice.value]}`, text.textContent) } })),
    text);
  dialog.addEventListener("close", () => dialog.remove());
  show();
  document.body.append(dialog);
  dialog.showModal();
}

const ENDINGS = { json: "json", curl: "sh", python: "py", javascript: "mjs" };
