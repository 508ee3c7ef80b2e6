/** Takes what the user says: text, images and files, sent by Enter, and stops the answer. */

import { iconButton, make } from "../core/dom.js";
import { Dictation } from "./dictation.js";
import { Images } from "./images.js";
import { Files } from "./files.js";

const MAX_ROWS_HEIGHT = 220;

export class Composer {
  /**
   * @param {function(string, string[], import("../session/items.js").AttachedFile[]): boolean} onSend is told the text, the images and the files, and says whether it has taken them.
   * @param {function(): void} onStop
   * @param {function(): void} onEditLast is called for the key up in an empty field.
   */
  constructor(onSend, onStop, onEditLast) {
    this.#onSend = onSend;
    this.#onEditLast = onEditLast;
    this.files = new Files(() => this.#fit());
    this.images = new Images(() => this.#fit());
    this.dictation = new Dictation((text) => this.#insert(text));
    this.field = make("textarea", { rows: "1", label: "chat.say", hint: "chat.say", dir: "auto", autofocus: true, enterkeyhint: "send" });
    this.#send = iconButton("send", "chat.send", () => this.#submit(), { class: "icon-button primary" });
    this.#stop = iconButton("stop", "chat.stop", onStop, { class: "icon-button primary", hidden: true });
    this.node = make("form", { class: "composer" }, this.images.node, this.files.node,
      make("div", { class: "row" }, this.files.button, this.images.button, this.dictation.button, this.field, this.#send, this.#stop));
    this.node.addEventListener("submit", (event) => event.preventDefault());
    this.field.addEventListener("input", () => this.#fit());
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.field.addEventListener("paste", (event) => {
      if (this.#take(event.clipboardData)) event.preventDefault();
    });
    this.#fit();
  }

  #onSend;
  #onEditLast;
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

  /** Takes files that are dropped onto an element. */
  listenForDrops(element) {
    element.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      element.classList.add("dropping");
    });
    element.addEventListener("dragleave", () => element.classList.remove("dropping"));
    element.addEventListener("drop", (event) => {
      element.classList.remove("dropping");
      // The browser would leave the page for it.
      if (event.dataTransfer.files.length) event.preventDefault();
      this.#take(event.dataTransfer);
    });
  }

  /** Takes the files of a drop or a paste, and returns whether there were any. */
  #take(transfer) {
    const files = [...transfer.files];
    const others = files.filter((file) => !this.images.accepts(file));
    this.images.take(files.filter((file) => this.images.accepts(file)));
    this.files.take(others);
    return files.length > 0;
  }

  /** Puts a text where the cursor is. */
  #insert(text) {
    this.field.focus();
    this.field.setRangeText(text, this.field.selectionStart, this.field.selectionEnd, "end");
    this.#fit();
  }

  #key(event) {
    if (event.key === "ArrowUp" && !this.field.value && !this.#isAnswering && !event.isComposing) {
      event.preventDefault();
      this.#onEditLast();
      return;
    }
    // While an input method is composing, Enter chooses a character.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.field.value.trim();
    const { urls } = this.images;
    if (this.#isAnswering || this.#isEmpty) return;
    if (!this.#onSend(text, urls, this.files.all)) return;
    this.field.value = "";
    this.files.clear();
    this.images.clear();
    this.#fit();
  }

  get #isEmpty() {
    return !this.field.value.trim() && !this.images.urls.length && !this.files.all.length;
  }

  #fit() {
    const { field } = this;
    if (!field) return;
    field.style.height = "auto";
    // What is not in the document has no height: the stylesheet's is right then.
    if (field.isConnected && field.scrollHeight) field.style.height = `${Math.min(field.scrollHeight, MAX_ROWS_HEIGHT)}px`;
    this.#send.disabled = this.#isEmpty;
  }
}
