/** Shows a call of a tool as a card, with a form in which the user gives its output by hand. */

import { make } from "../core/dom.js";

export class CallCard {
  /** @param {function(Object, string): void} onOutput is told the call and its output. */
  constructor(onOutput) {
    this.#onOutput = onOutput;
    this.#name = make("strong");
    this.#arguments = make("pre", { tabindex: "0", label: "call.arguments" });
    this.#rest = make("div");
    this.node = make("section", { class: "card call", label: "call.label" },
      make("header", {}, make("span", { class: "badge", text: "call.badge" }), this.#name), this.#arguments, this.#rest);
  }

  #onOutput;
  #name;
  #arguments;
  #rest;
  #state = "";

  /**
   * Shows a call as it is now.
   *
   * @param {Object} call
   * @param {string|null} output what the tool has answered; null = nothing yet.
   * @param {boolean} isOpen whether the user may answer.
   */
  show(call, output, isOpen) {
    this.#name.textContent = call.name;
    this.#arguments.textContent = pretty(call.arguments ?? call.input ?? "");
    const state = output !== null ? "given" : isOpen ? "open" : "waits";
    if (state === this.#state) return;
    this.#state = state;
    this.#rest.replaceChildren(...(output !== null ? this.#given(output) : isOpen ? [this.#form(call)] : []));
  }

  #given(output) {
    return [make("p", { class: "faint", text: "call.output" }), make("pre", { tabindex: "0", label: "call.output" }, pretty(output))];
  }

  #form(call) {
    const field = make("textarea", { rows: "3", label: "call.output", hint: "call.hint", required: true });
    const form = make("form", { class: "stack" }, field,
      make("div", { class: "row end" }, make("button", { class: "primary", text: "call.send" })));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#rest.replaceChildren(...this.#given(field.value));
      this.#onOutput(call, field.value);
    });
    return form;
  }
}

/** Returns JSON as people read it, and any other text as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return typeof text === "string" ? text : JSON.stringify(text, null, 2);
  }
}
