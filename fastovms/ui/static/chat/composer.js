/** Takes what the user says: text and images, sent by Enter, and stops the answer. */

import { iconButton, make } from "../core/dom.js";
import { Images } from "./images.js";

const MAX_ROWS_HEIGHT = 220;

export class Composer {
  /**
   * @param {function(string, string[]): boolean} onSend is told the text and the images, and says whether it has taken them.
   * @param {function(): void} onStop
   */
  constructor(onSend, onStop) {
    this.#onSend = onSend;
    this.images = new Images(() => this.#fit());
    this.field = make("textarea", { rows: "1", label: "chat.say", hint: "chat.say", dir: "auto", autofocus: true, enterkeyhint: "send" });
    this.#send = iconButton("send", "chat.send", () => this.#submit(), { class: "icon-button primary" });
    this.#stop = iconButton("stop", "chat.stop", onStop, { class: "icon-button primary", hidden: true });
    this.node = make("form", { class: "composer" }, this.images.node,
      make("div", { class: "row" }, this.images.button, this.field, this.#send, this.#stop));
    this.node.addEventListener("submit", (event) => event.preventDefault());
    this.field.addEventListener("input", () => this.#fit());
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.field.addEventListener("paste", (event) => {
      if (this.images.take(event.clipboardData)) event.preventDefault();
    });
    this.#fit();
  }

  #onSend;
  #send;
  #stop;
  #isAnswering = false;

  /** @param {boolean} isAnswering whether an answer runs, which can be stopped. */
  showState(isAnswering) {
    const hadFocus = [this.#send, this.#stop].includes(document.activeElement);
    this.#isAnswering = isAnswering;
    this.#send.hidden = isAnswering;
    this.#stop.hidden = !isAnswering;
    if (hadFocus) this.field.focus();
  }

  /** Takes images that are dropped onto an element. */
  listenForDrops(element) {
    element.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      element.classList.add("dropping");
    });
    element.addEventListener("dragleave", () => element.classList.remove("dropping"));
    element.addEventListener("drop", (event) => {
      element.classList.remove("dropping");
      // Also what is no image: the browser would leave the page for it.
      if (event.dataTransfer.files.length) event.preventDefault();
      this.images.take(event.dataTransfer);
    });
  }

  #key(event) {
    // While an input method is composing, Enter chooses a character.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.field.value.trim();
    const { urls } = this.images;
    if (this.#isAnswering || (!text && !urls.length)) return;
    if (!this.#onSend(text, urls)) return;
    this.field.value = "";
    this.images.clear();
    this.#fit();
  }

  #fit() {
    const { field } = this;
    if (!field) return;
    field.style.height = "auto";
    // What is not in the document has no height: the stylesheet's is right then.
    if (field.isConnected && field.scrollHeight) field.style.height = `${Math.min(field.scrollHeight, MAX_ROWS_HEIGHT)}px`;
    this.#send.disabled = !field.value.trim() && !this.images.urls.length;
  }
}
