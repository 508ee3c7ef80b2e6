/** Asks two models, or one with two settings, the same, and shows both answers side by side as they come. */

import { ChatPane } from "../chat/chat_pane.js";
import { Composer } from "../chat/composer.js";
import { iconButton, make } from "../core/dom.js";
import { userMessage } from "../session/items.js";
import { hasSettings } from "../session/settings.js";
import { TabChats } from "../session/tab_chats.js";

const PLACES = ["left", "right"];

export class CompareView {
  /**
   * @param {Object[]} models as the server lists them.
   * @param {import("../chat/reading.js").Reading} reading
   */
  constructor(models, reading) {
    const isFirstTime = !hasSettings("right");
    this.#columns = PLACES.map((place) => new Column(models, place, reading, () => this.#showImages()));
    this.#composer = new Composer((text, images, files) => this.#say(userMessage(text, images, files)), () => this.#stop(), () => {});
    this.#empty = make("div", { class: "empty" }, make("h2", { text: "compare.welcome" }), make("p", { class: "faint", text: "compare.note" }));
    this.node = make("section", { class: "compare-view", label: "compare.title" },
      make("h1", { class: "off-screen", text: "compare.title" }),
      make("div", { class: "compare-columns" }, ...this.#columns.map(({ node }) => node)), this.#empty,
      make("div", { class: "compare-say" }, iconButton("plus", "compare.new", () => this.#begin()), this.#composer.node));
    this.#composer.listenForDrops(this.node);
    for (const { pane } of this.#columns) {
      for (const type of ["opened", "asked", "answering", "answered"]) pane.session.addEventListener(type, () => this.#showState());
      pane.showModel();
    }
    const [, right] = this.#columns;
    if (isFirstTime && models.length > 1) right.pane.chooseModel(models.find(({ id }) => id !== this.#columns[0].pane.settings.model).id);
    this.#showState();
  }

  #columns;
  #composer;
  #empty;

  get #sessions() {
    return this.#columns.map(({ pane }) => pane.session);
  }

  /** Asks both, if what is set for both can be sent, and returns whether they were asked. */
  #say(message) {
    if (!this.#columns.every(({ pane }) => pane.mayAsk())) return false;
    for (const { pane } of this.#columns) pane.say([message]);
    return true;
  }

  #stop() {
    for (const session of this.#sessions) if (session.isAnswering) session.stop();
  }

  #begin() {
    for (const session of this.#sessions) session.begin();
    this.#composer.field.focus();
  }

  #showState() {
    this.#empty.hidden = this.#sessions.some(({ items, turn }) => items.length || turn);
    this.#composer.showState(this.#sessions.some(({ isAnswering }) => isAnswering));
  }

  /** Images are for models of which both see. */
  #showImages() {
    this.#composer?.images.enable(this.#columns.every(({ sees }) => sees));
  }
}

/** One of the two chats. */
class Column {
  sees = false;

  constructor(models, place, reading, onModel) {
    this.pane = new ChatPane(new TabChats(), models, {
      place,
      reading,
      showSettings: () => this.#showSettings(true),
      onVariant: (id) => this.pane.session.open(id),
      onModel: ({ capabilities = [] }) => {
        this.sees = capabilities.includes("vision");
        onModel();
      },
    });
    const { meter, models: choice, panel, transcript } = this.pane;
    this.#toggle = iconButton("settings", "set.title", () => this.#showSettings(this.#settings.hidden), { "aria-expanded": "false", "aria-controls": `settings-${place}` });
    this.#settings = make("div", { class: "compare-settings", id: `settings-${place}`, hidden: true }, panel.node);
    this.node = make("section", { class: "compare-column", label: `compare.${place}` },
      make("header", { class: "row" }, choice.node, this.#toggle), this.#settings, transcript.node, make("footer", { class: "note" }, meter.node));
    this.#settings.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape") return;
      this.#showSettings(false);
      this.#toggle.focus();
    });
  }

  #toggle;
  #settings;

  #showSettings(isOpen) {
    this.#settings.hidden = !isOpen;
    this.#toggle.setAttribute("aria-expanded", String(isOpen));
  }
}
