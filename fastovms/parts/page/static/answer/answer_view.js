/** Shows one answer: thoughts folded, text as Markdown, calls as cards. */

import { isCall, isCallOutput, joined, textOf } from "../session/items.js";
import { make } from "../core/dom.js";
import { CallCard } from "./call_card.js";
import { showMarkdown } from "./markdown.js";
import { tokenView } from "./token_view.js";

export class AnswerView {
  /** @param {function(Object, string): void} onOutput is told a call and the output that the user gives. */
  constructor(onOutput) {
    this.#onOutput = onOutput;
    this.node = make("div", { class: "answer" });
  }

  #onOutput;
  #parts = [];
  #showsTokens = false;

  /**
   * Shows the items of the answer.
   *
   * @param {Object[]} items outputs of tools among them.
   * @param {{isGrowing: boolean, isLast: boolean}} state whether it still grows, and whether it is the
   *   chat's last, so that its calls may be answered.
   */
  show(items, { isGrowing, isLast }) {
    const outputs = new Map(items.filter(isCallOutput).map((item) => [item.call_id, outputText(item)]));
    const visible = joined(items.filter((item) => !isCallOutput(item)));
    visible.forEach((item, index) => {
      let part = this.#parts[index];
      if (part?.type !== item.type) {
        part = this.#partOf(item);
        this.#parts[index]?.node.remove();
        this.#parts[index] = part;
        this.node.insertBefore(part.node, this.node.children[index] ?? null);
      }
      part.show(item, outputs.get(item.call_id) ?? null, { isGrowing: isGrowing && index === visible.length - 1, isOpen: isLast && !isGrowing });
    });
    for (const part of this.#parts.splice(visible.length)) part.node.remove();
  }

  /** Shows the tokens of the texts in place of the texts, or these again. */
  toggleTokens() {
    this.#showsTokens = !this.#showsTokens;
    for (const part of this.#parts) part.showTokens?.(this.#showsTokens);
    return this.#showsTokens;
  }

  #partOf(item) {
    if (item.type === "reasoning") return new Thoughts();
    if (isCall(item)) return new Call(item.type, this.#onOutput);
    return new Text(item.type);
  }
}

/** Returns whether there are log probabilities to show. */
export function hasTokens(items) {
  return items.some((item) => logprobsOf(item).length > 0);
}

class Text {
  constructor(type) {
    this.type = type;
    this.node = make("div", { class: "text markdown" });
  }

  #item = null;

  show(item, _, { isGrowing }) {
    this.#item = item;
    this.node.classList.toggle("growing", isGrowing);
    showMarkdown(this.node, textOf(item));
  }

  showTokens(isShown) {
    this.node.replaceChildren();
    const logprobs = logprobsOf(this.#item);
    if (isShown && logprobs.length) this.node.append(tokenView(logprobs));
    else showMarkdown(this.node, textOf(this.#item));
  }
}

class Thoughts {
  type = "reasoning";

  constructor() {
    this.#text = make("div", { class: "markdown" });
    this.node = make("details", { class: "thoughts" }, make("summary", { text: "answer.thoughts" }), this.#text);
    this.node.addEventListener("toggle", () => this.#draw());
  }

  #text;
  #item = null;

  show(item, _, { isGrowing }) {
    this.#item = item;
    this.node.classList.toggle("growing", isGrowing);
    this.#draw();
  }

  /** Folded reasoning is not rendered. */
  #draw() {
    if (this.node.open && this.#item) showMarkdown(this.#text, textOf(this.#item));
  }
}

class Call {
  #card;

  constructor(type, onOutput) {
    this.type = type;
    this.#card = new CallCard(onOutput);
    this.node = this.#card.node;
  }

  show(item, output, { isOpen }) {
    this.#card.show(item, output, isOpen);
  }
}

function logprobsOf(item) {
  return Array.isArray(item?.content) ? item.content.flatMap((part) => part.logprobs ?? []) : [];
}

function outputText({ output }) {
  return typeof output === "string" ? output : textOf({ content: output });
}
