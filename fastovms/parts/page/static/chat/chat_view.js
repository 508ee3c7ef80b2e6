/** Puts the chat together: its list, its messages, the settings, and what the user says. */

import { loadMarkdown } from "../answer/markdown.js";
import { iconButton, make } from "../core/dom.js";
import { userMessage } from "../session/items.js";
import { requestBody, withThoseOf } from "../session/settings.js";
import { ChatList } from "./chat_list.js";
import { ChatPane } from "./chat_pane.js";
import { Composer } from "./composer.js";
import { openExport } from "./export_dialog.js";

export class ChatView {
  /**
   * @param {Object} store that keeps chats.
   * @param {Object[]} models as the server lists them.
   * @param {import("./reading.js").Reading} reading
   */
  constructor(store, models, reading) {
    this.#pane = new ChatPane(store, models, {
      reading,
      showSettings: () => this.#showSettings(true),
      onVariant: (id) => this.open(id),
      onModel: ({ capabilities = [] }) => this.#composer.images.enable(capabilities.includes("vision")),
    });
    this.session = this.#pane.session;
    const { transcript } = this.#pane;
    this.#composer = new Composer((text, images, files) => this.#pane.say([userMessage(text, images, files)]), () => this.session.stop(), () => transcript.editLast());
    this.list = new ChatList(this.session);
    this.#build(store);
    this.#listen();
    this.#pane.showModel();
    this.session.begin();
  }

  #pane;
  #composer;
  #aside;
  #toggle;
  #empty;

  /**
   * Opens a chat; one that is not there any more is an empty one.
   *
   * @param {string} id
   */
  async open(id) {
    const { panel } = this.#pane;
    try {
      await loadMarkdown().catch(() => {}); // else the chat is shown as it is written
      const response = await this.session.open(id);
      if (response) panel.put(withThoseOf(panel.settings, response));
      this.#pane.showModel();
    } catch (error) {
      if (error.status !== 404) throw error;
      this.session.begin();
    }
  }

  /**
   * Shows the chat that the address names, unless it is the one that is open.
   *
   * @param {string} id "" = an empty chat.
   */
  async go(id) {
    if (id === (this.session.chat?.id ?? "")) return;
    if (id) await this.open(id);
    else this.begin();
  }

  /** @returns {string} where the open chat is found: the last part of the page's address. */
  get address() {
    const { chat } = this.session;
    return chat ? `#chat/${chat.id}` : "#chat";
  }

  /** Begins an empty chat. */
  begin() {
    this.session.begin();
    this.#composer.field.focus();
  }

  /** @param {string} [model] the id of the model that transcribes what the user says; undefined = there is none. */
  dictateTo(model) {
    this.#composer.dictation.enable(model);
  }

  #build(store) {
    const { meter, models, panel, transcript } = this.#pane;
    this.#toggle = iconButton("settings", "set.title", () => this.#toggleSettings(), { "aria-expanded": "false", "aria-controls": "settings" });
    this.tools = make("div", { class: "row bar-tools" }, models.node, iconButton("chip", "models.title", () => this.#showModels()), iconButton("export", "export.title", () => this.#export()), this.#toggle);
    this.#aside = make("aside", { class: "panel", id: "settings", label: "set.title", hidden: true },
      make("header", { class: "row" }, make("h2", { text: "set.title" }), iconButton("close", "close", () => this.#toggleSettings())),
      panel.node);
    this.#empty = make("div", { class: "empty" }, make("h2", { text: "chat.welcome" }), make("p", { class: "faint", text: store.lasting ? "chat.lasting" : "chat.not-lasting" }));
    this.node = make("div", { class: "chat-view" },
      make("section", { class: "chat-column", label: "chat.title" }, make("h1", { class: "off-screen", text: "chat.title" }), this.#empty, transcript.node, this.#composer.node,
        make("footer", { class: "note" }, meter.node, make("p", { class: "faint", text: "chat.note" }))),
      this.#aside);
    this.#composer.listenForDrops(this.node);
    this.#aside.addEventListener("keydown", ({ key }) => key === "Escape" && this.#toggleSettings());
  }

  #listen() {
    const { session } = this;
    for (const type of ["opened", "asked", "answering", "answered"]) session.addEventListener(type, () => this.#showState());
    for (const type of ["opened", "listed"]) session.addEventListener(type, () => this.#showPlace());
    document.addEventListener("visibilitychange", () => document.hidden || session.refresh());
    addEventListener("focus", () => session.refresh());
  }

  #showState() {
    const { session } = this;
    const isEmpty = !session.items.length && !session.turn;
    this.#empty.hidden = !isEmpty;
    this.#pane.transcript.node.hidden = isEmpty;
    this.#composer.showState(session.isAnswering);
  }

  /** Puts the chat into the address, so that a reload finds it. */
  #showPlace() {
    const { chat } = this.session;
    const title = chat && this.session.titles.of(chat);
    document.title = title ? `${title} · fastovms` : "fastovms";
    if (this.node.isConnected) history.replaceState(null, "", this.address);
  }

  #showSettings(isOpen) {
    this.#aside.hidden = !isOpen;
    this.#toggle.setAttribute("aria-expanded", String(isOpen));
  }

  #toggleSettings() {
    const isOpen = this.#aside.hidden;
    this.#showSettings(isOpen);
    (isOpen ? this.#aside.querySelector("textarea") : this.#toggle).focus();
  }

  async #showModels() {
    const { openModels } = await import("./models_dialog.js");
    await openModels(async () => {
      await this.#pane.models.refresh();
      this.#pane.showModel();
    });
  }

  #export() {
    const { chat, items } = this.session;
    if (this.#pane.mayAsk()) openExport(chat, items, requestBody(this.#pane.settings, items));
  }
}
