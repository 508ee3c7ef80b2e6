/** Takes text files by drop, paste and choice, which are sent as texts. */

import { iconButton, make, warn } from "../core/dom.js";
import { say } from "../core/language.js";

/** Bytes of a file: more than a context holds. */
const MAX_SIZE = 1_000_000;

export class TextFiles {
  /** @param {function(): void} onChange */
  constructor(onChange) {
    this.#onChange = onChange;
    this.#chooser = make("input", { type: "file", multiple: true, hidden: true, on: { change: () => this.#choose() } });
    this.button = iconButton("attach", "files.add", () => this.#chooser.click());
    this.node = make("div", { class: "files" }, this.#chooser);
  }

  #onChange;
  #chooser;
  #files = [];

  /** @returns {{name: string, text: string}[]} */
  get all() {
    return this.#files;
  }

  clear() {
    this.#files = [];
    this.#draw();
  }

  /**
   * Takes files, and says which of them are not texts.
   *
   * @param {File[]} files
   */
  async take(files) {
    for (const file of files) {
      const text = file.size > MAX_SIZE ? null : await textOf(file);
      if (text === null) warn(say("files.not-text", { name: file.name }));
      else this.#files.push({ name: file.name, text });
    }
    this.#draw();
  }

  #choose() {
    this.take([...this.#chooser.files]);
    this.#chooser.value = "";
  }

  #draw() {
    this.node.replaceChildren(this.#chooser, ...this.#files.map((file) => make("div", { class: "file-chip" },
      make("span", { dir: "auto" }, file.name),
      iconButton("close", "files.remove", () => {
        this.#files.splice(this.#files.indexOf(file), 1);
        this.#draw();
      }))));
    this.#onChange();
  }
}

/** Returns a file's text, or null if it is not UTF-8 or has bytes that no text has. */
async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
