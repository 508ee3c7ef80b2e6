/** Takes texts and PDFs by drop, paste and choice: texts are sent as texts, PDFs as they are. */

import { iconButton, make, warn } from "../core/dom.js";
import { say } from "../core/language.js";
import { dataUrl } from "./images.js";

/** Bytes of a text: more than a context holds. */
const MAX_TEXT = 1_000_000;
/** Bytes of a PDF, of which most are no text. */
const MAX_PDF = 10_000_000;
const PDF = "application/pdf";

export class Files {
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

  /** @returns {import("../session/items.js").AttachedFile[]} */
  get all() {
    return this.#files;
  }

  clear() {
    this.#files = [];
    this.#draw();
  }

  /**
   * Takes files, and says which of them are neither texts nor PDFs.
   *
   * @param {File[]} files
   */
  async take(files) {
    for (const file of files) {
      const content = (await isPdf(file)) ? await pdfOf(file) : await textOf(file);
      if (content === null) warn(say("files.refused", { name: file.name }));
      else this.#files.push({ name: file.name, ...content });
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

async function isPdf(file) {
  return (await file.slice(0, 5).text()) === "%PDF-";
}

/** Returns a PDF as a data URL, or null if it is too large. */
async function pdfOf(file) {
  return file.size > MAX_PDF ? null : { data: await dataUrl(new Blob([file], { type: PDF })) };
}

/** Returns a file's text, or null if it is too large, not UTF-8, or has bytes that no text has. */
async function textOf(file) {
  if (file.size > MAX_TEXT) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : { text };
  } catch {
    return null;
  }
}
