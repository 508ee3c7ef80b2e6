/** Takes images by drop, paste and choice, as the data URLs that requests bring. */

import { iconButton, make } from "../core/dom.js";
import { say } from "../core/language.js";

const TYPES = /^image\/(png|jpeg|webp|gif|bmp)$/;

export class Images {
  /** @param {function(): void} onChange */
  constructor(onChange) {
    this.#onChange = onChange;
    this.#chooser = make("input", { type: "file", accept: "image/*", multiple: true, hidden: true, on: { change: () => this.#choose() } });
    this.button = iconButton("image", "images.add", () => this.#chooser.click());
    this.node = make("div", { class: "images" }, this.#chooser);
    this.enable(false);
  }

  #onChange;
  #chooser;
  #urls = [];

  /** @returns {string[]} data URLs. */
  get urls() {
    return this.#urls;
  }

  /** @param {boolean} takesImages whether the model sees. */
  enable(takesImages) {
    this.button.hidden = !takesImages;
    if (!takesImages) this.clear();
  }

  clear() {
    this.#urls = [];
    this.#draw();
  }

  /** Returns whether a file is an image that the model may see. */
  accepts(file) {
    return !this.button.hidden && TYPES.test(file.type);
  }

  /**
   * Takes images of a drop or a paste.
   *
   * @param {File[]} files
   */
  take(files) {
    if (files.length) this.#read(files);
  }

  #choose() {
    this.#read([...this.#chooser.files].filter((file) => TYPES.test(file.type)));
    this.#chooser.value = "";
  }

  async #read(files) {
    this.#urls.push(...await Promise.all(files.map(dataUrl)));
    this.#draw();
  }

  #draw() {
    this.node.replaceChildren(this.#chooser, ...this.#urls.map((url, index) => make("div", { class: "thumbnail" },
      make("img", { src: url, alt: say("chat.image") }),
      iconButton("close", "images.remove", () => {
        this.#urls.splice(index, 1);
        this.#draw();
      }))));
    this.#onChange();
  }
}

/** Returns a file as a data URL. */
export function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
