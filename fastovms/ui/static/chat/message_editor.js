/** Edits a message of the user in its place. */

import { make } from "../core/dom.js";
import { filesOf, ownTextOf } from "../session/items.js";

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
    const files = new Set(filesOf(item).map(({ part }) => part));
    const kept = Array.isArray(item.content) ? item.content.filter((part) => part.type === "input_image" || files.has(part)) : [];
    const edited = { type: "message", role: "user", content: [...kept, { type: "input_text", text: field.value }] };
    if (onAsk(edited)) close();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  bubble.replaceWith(form);
  field.focus();
}
