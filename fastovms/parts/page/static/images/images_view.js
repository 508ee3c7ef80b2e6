/** Has a model make an image of a prompt, and shows it while it is made. */

import { announce, elapsed, make } from "../core/dom.js";
import { say } from "../core/language.js";
import { askEvents } from "../core/server.js";
import { WorkList } from "../live/work_list.js";

const LOOK = 1000;

export class ImagesView {
  /** @param {Object[]} models that make images. */
  constructor(models) {
    const names = models.map(({ id }) => make("option", { value: id }, id));
    this.#model = make("select", { label: "chat.choose-model", hidden: names.length < 2 }, ...names);
    this.#prompt = make("textarea", { rows: "3", required: true, label: "images.prompt", hint: "images.prompt" });
    this.#begin = make("button", { class: "primary", text: "images.make" });
    this.#stop = make("button", { type: "button", hidden: true, text: "chat.stop", on: { click: () => this.#stopping.abort() } });
    const form = make("form", {}, this.#prompt, make("div", { class: "row" }, this.#begin, this.#stop, this.#model));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#make();
    });
    this.node = make("section", { class: "images-view", label: "images.title" }, make("h1", { text: "images.title" }), form, this.#work.node, this.#list);
  }

  #model;
  #prompt;
  #begin;
  #stop;
  #stopping = null;
  #work = new WorkList();
  #list = make("div", { class: "made-images" });

  async #make() {
    const prompt = this.#prompt.value;
    const image = make("img", { alt: prompt, hidden: true });
    const figure = make("figure", { "aria-busy": "true" }, image, make("figcaption", { dir: "auto" }, prompt));
    this.#list.prepend(figure);
    this.#stopping = new AbortController();
    const { signal } = this.#stopping;
    this.#showState(true);
    this.#watch(figure);
    try {
      const body = { model: this.#model.value, prompt, stream: true, partial_images: 3 };
      for await (const event of askEvents("POST", "v1/images/generations", body, signal)) {
        image.src = `data:image/${event.output_format};base64,${event.b64_json}`;
        image.hidden = false;
      }
      announce(say("images.made"));
    } catch (error) {
      figure.remove();
      if (!signal.aborted) throw error;
    } finally {
      figure.removeAttribute("aria-busy");
      this.#showState(false);
    }
  }

  /** Shows the steps until the image is there. */
  async #watch(figure) {
    while (figure.hasAttribute("aria-busy")) {
      await this.#work.look();
      await elapsed(LOOK);
    }
    await this.#work.look();
  }

  #showState(isMaking) {
    this.#begin.hidden = isMaking;
    this.#stop.hidden = !isMaking;
    (isMaking ? this.#stop : this.#prompt).focus();
  }
}
