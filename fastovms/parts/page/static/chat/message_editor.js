/** Edits a message of the user in its place. */

import { make } from "../core/dom.js";
import { ownTextOf, withOwnText } from "../session/items.js";

/**
 * Puts a form in place of a message's bubble.
 *
 * @param {HTMLElement} bubble
 * @param {Object} item the message.
 * @param {function(Object): boolean} onAsk is told the edited message, and says whether it is asked.
 */
export function editMessage(bubble, item, onAsk) {
  const field = make("textarea", { rows: "4", label: "chat.edit", dir: "auto" });
  field.value = ownTextOf(item);
  const close = () => form.replaceWith(bubble);
  const form = make("form", { class: "stack bubble" }, field, make("div", { class: "row end" },
    make("button", { type: "button", text: "cancel", on: { click: close } }), make("button", { class: "primary", text: "chat.ask" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (onAsk(withOwnText(item, field.value))) close();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  bubble.replaceWith(form);
  field.focus();
}
