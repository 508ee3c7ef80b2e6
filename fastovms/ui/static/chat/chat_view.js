/** Puts the chat together: its list, its messages, the settings, and what the user says. */

import { elapsed, iconButton, make } from "../core/dom.js";
import { variantsAt } from "../session/branches.js";
import { ChatList } from "./chat_list.js";
import { ChatSession } from "../session/chat_session.js";
import { ContextMeter } from "./context_meter.js";
import { Composer } from "./composer.js";
import { openExport } from "./export_dialog.js";
import { callOutput, isCall, isCallOutput, userMessage } from "../session/items.js";
import { requestBody, withThoseOf } from "../session/settings.js";
import { SettingsPanel } from "./settings_panel.js";
import { Transcript } from "./transcript.js";
import { ModelChoice } from "./model_choice.js";

/** Milliseconds until it is first looked where the model of an answer that waits is, and from then on. */
const FIRST_LOOK = 300;
const NEXT_LOOK = 700;

export class ChatView {
  /**
   * @param {Object} store that keeps chats.
   * @param {Object[]} models as the server lists them.
   */
  constructor(store, models) {
    this.#models = new ModelChoice(models, (id) => this.#chooseModel(id));
    this.session = new ChatSession(store);
    this.#panel = new SettingsPanel(() => this.#showModel());
    this.#composer = new Composer((text, images, files) => this.#say([userMessage(text, images, files)]), () => this.session.stop(), () => this.#transcript.editLast());
    this.#transcript = new Transcript(this.session, {
      onEdit: (at, message) => this.#branch(at, [message]),
      onRegenerate: (at) => this.#branch(at, [this.session.items[at]]),
      onContinue: () => this.#mayAsk() && this.session.continueAnswer(this.#panel.settings),
      onRetry: () => this.#mayAsk() && this.session.askAgain(this.#panel.settings),
      onOutput: (call, output) => this.#giveOutput(call, output),
      onVariant: (id) => this.open(id),
      waitsForModel: () => (this.#models.isLoaded ? "" : this.#models.chosen.id),
      variantsAt: (at) => (this.session.chat ? variantsAt(this.session.chats, this.session.chat, at) : { ids: [], current: 0 }),
    });
    this.list = new ChatList(this.session, (id) => this.open(id));
    this.#meter = new ContextMeter(this.session, () => this.#panel.settings.contextLength);
    this.#build(store);
    this.#listen();
    this.#showModel();
    this.session.begin();
  }

  #models;
  #panel;
  #composer;
  #meter;
  #transcript;
  #aside;
  #toggle;
  #empty;
  #outputs = new Map();
  #isWatching = false;

  /**
   * Opens a chat; one that is not there any more is an empty one.
   *
   * @param {string} id
   */
  async open(id) {
    try {
      const response = await this.session.open(id);
      if (response) this.#panel.put(withThoseOf(this.#panel.settings, response));
      this.#showModel();
    } catch (error) {
      if (error.status !== 404) throw error;
      this.session.begin();
    }
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
    this.#toggle = iconButton("settings", "set.title", () => this.#toggleSettings(), { "aria-expanded": "false", "aria-controls": "settings" });
    this.tools = make("div", { class: "row bar-tools" }, this.#models.node, iconButton("export", "export.title", () => this.#export()), this.#toggle);
    this.#aside = make("aside", { class: "panel", id: "settings", label: "set.title", hidden: true },
      make("header", { class: "row" }, make("h2", { text: "set.title" }), iconButton("close", "close", () => this.#toggleSettings())),
      this.#panel.node);
    this.#empty = make("div", { class: "empty" }, make("h1", { text: "chat.welcome" }), make("p", { class: "faint", text: store.lasting ? "chat.lasting" : "chat.not-lasting" }));
    this.node = make("div", { class: "chat-view" },
      make("section", { class: "chat-column", label: "chat.title" }, this.#empty, this.#transcript.node, this.#composer.node,
        make("footer", { class: "note" }, this.#meter.node, make("p", { class: "faint", text: "chat.note" }))),
      this.#aside);
    this.#composer.listenForDrops(this.node);
    this.#aside.addEventListener("keydown", ({ key }) => key === "Escape" && this.#toggleSettings());
  }

  #listen() {
    const { session } = this;
    for (const type of ["opened", "asked", "answering", "answered"]) session.addEventListener(type, () => this.#showState());
    session.addEventListener("listed", () => this.#transcript.showVariants());
    session.addEventListener("opened", () => {
      this.#outputs.clear();
      this.#showPlace();
    });
    session.addEventListener("asked", () => {
      this.#outputs.clear();
      this.#watchModel();
    });
    session.addEventListener("listed", () => this.#showPlace());
    document.addEventListener("visibilitychange", () => document.hidden || session.refresh());
  }

  /** Returns whether what is set can be sent, and shows what of it cannot. */
  #mayAsk() {
    const { isValid } = this.#panel;
    if (!isValid) {
      this.#showSettings(true);
      this.#panel.node.reportValidity();
    }
    return isValid;
  }

  /** Returns whether it was asked. */
  #say(input) {
    if (!this.#mayAsk()) return false;
    this.session.ask(this.#panel.settings, input);
    return true;
  }

  /** Returns whether a branch was begun. */
  #branch(at, input) {
    if (!this.#mayAsk() || this.session.isAnswering) return false;
    this.session.branch(this.#panel.settings, at, input);
    return true;
  }

  /** Sends the outputs of calls once each call has one. */
  #giveOutput(call, output) {
    this.#outputs.set(call.call_id, callOutput(call, output));
    const { items } = this.session;
    const given = new Set(items.filter(isCallOutput).map((item) => item.call_id));
    const open = items.filter((item) => isCall(item) && !given.has(item.call_id));
    if (open.every((one) => this.#outputs.has(one.call_id))) this.#say([...this.#outputs.values()]);
  }

  #showModel() {
    const { settings } = this.#panel;
    const model = this.#models.choose(settings.model);
    if (!model) return;
    const contextLength = model.max_model_len ?? null;
    if (model.id !== settings.model || contextLength !== settings.contextLength) this.#panel.put({ ...settings, model: model.id, contextLength });
    this.#meter.show();
    this.#panel.showFor(model);
    this.#composer.images.enable((model.capabilities ?? []).includes("vision"));
  }

  #chooseModel(id) {
    this.#panel.put({ ...this.#panel.settings, model: id });
    this.#showModel();
  }

  /** Looks where the model is while the answer waits, which may be for the model to be loaded. */
  async #watchModel() {
    if (this.#isWatching) return;
    this.#isWatching = true;
    await elapsed(FIRST_LOOK);
    while (this.session.isQueued) {
      await this.#models.refresh();
      this.#transcript.showWaiting();
      await elapsed(NEXT_LOOK);
    }
    this.#isWatching = false;
    if (!this.#models.isLoaded) await this.#models.refresh();
    this.#showModel();
  }

  #showState() {
    const { session } = this;
    const isEmpty = !session.items.length && !session.turn;
    this.#empty.hidden = !isEmpty;
    this.#transcript.node.hidden = isEmpty;
    this.#composer.showState(session.isAnswering);
  }

  /** Puts the chat into the address, so that a reload finds it. */
  #showPlace() {
    const { chat } = this.session;
    const title = chat && this.session.titles.of(chat);
    document.title = title ? `${title} · fastovms` : "fastovms";
    if (this.node.isConnected) history.replaceState(null, "", chat ? `#chat/${chat.id}` : "#chat");
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

  #export() {
    const { chat, items } = this.session;
    if (this.#mayAsk()) openExport(chat, items, requestBody(this.#panel.settings, items));
  }
}
