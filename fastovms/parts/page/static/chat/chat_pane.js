/** One chat with its model, its settings and its messages: the chat view has one, the side-by-side view two. */

import { elapsed } from "../core/dom.js";
import { variantsAt } from "../session/branches.js";
import { ChatSession } from "../session/chat_session.js";
import { callOutput, isCall, isCallOutput } from "../session/items.js";
import { ContextMeter } from "./context_meter.js";
import { ModelChoice } from "./model_choice.js";
import { SettingsPanel } from "./settings_panel.js";
import { Transcript } from "./transcript.js";

/** Milliseconds until it is first looked where the model of an answer that waits is, and from then on. */
const FIRST_LOOK = 300;
const NEXT_LOOK = 700;

/**
 * What a pane asks of its view.
 *
 * @typedef {Object} Surroundings
 * @property {string} [place] by which the settings are kept; "" = those of the chat.
 * @property {import("./reading.js").Reading} reading
 * @property {function(): void} showSettings shows the panel, since what is set cannot be sent.
 * @property {function(string): void} onVariant is told the id of the branch to show.
 * @property {function(Object): void} onModel is told the model that is chosen.
 */

export class ChatPane {
  /**
   * @param {Object} store that keeps chats.
   * @param {Object[]} models as the server lists them.
   * @param {Surroundings} surroundings
   */
  constructor(store, models, { place = "", reading, showSettings, onVariant, onModel }) {
    this.#showSettings = showSettings;
    this.#onModel = onModel;
    this.models = new ModelChoice(models, (id) => this.chooseModel(id));
    this.session = new ChatSession(store);
    this.panel = new SettingsPanel(() => this.showModel(), place);
    this.transcript = new Transcript(this.session, {
      onEdit: (at, message) => this.#branch(at, [message]),
      onRegenerate: (at) => this.#branch(at, [this.session.items[at]]),
      onContinue: () => this.mayAsk() && this.session.continueAnswer(this.settings),
      onRetry: () => this.mayAsk() && this.session.askAgain(this.settings),
      onOutput: (call, output) => this.#giveOutput(call, output),
      onVariant,
      reading,
      waitsForModel: () => (this.models.isLoaded ? "" : this.models.chosen.id),
      variantsAt: (at) => (this.session.chat ? variantsAt(this.session.chats, this.session.chat, at) : { ids: [], current: 0 }),
    }, place ? `compare.messages-${place}` : "chat.messages");
    this.meter = new ContextMeter(this.session, () => this.settings.contextLength);
    this.session.addEventListener("opened", () => this.#outputs.clear());
    this.session.addEventListener("asked", () => {
      this.#outputs.clear();
      this.#watchModel();
    });
    this.session.addEventListener("listed", () => this.transcript.showVariants());
  }

  #showSettings;
  #onModel;
  #outputs = new Map();
  #isWatching = false;

  get settings() {
    return this.panel.settings;
  }

  /** Returns whether what is set can be sent, and shows what of it cannot. */
  mayAsk() {
    const { isValid } = this.panel;
    if (!isValid) {
      this.#showSettings();
      this.panel.node.reportValidity();
    }
    return isValid;
  }

  /** Returns whether it was asked. */
  say(input) {
    if (!this.mayAsk()) return false;
    this.session.ask(this.settings, input);
    return true;
  }

  chooseModel(id) {
    this.panel.put({ ...this.settings, model: id });
    this.showModel();
  }

  /** Shows the model that is set, or the first one if there is none of that name. */
  showModel() {
    const { settings } = this;
    const model = this.models.choose(settings.model);
    if (!model) return;
    const contextLength = model.max_model_len ?? null;
    if (model.id !== settings.model || contextLength !== settings.contextLength) this.panel.put({ ...settings, model: model.id, contextLength });
    this.meter.show();
    this.panel.showFor(model);
    this.#onModel(model);
  }

  /** Returns whether a branch was begun. */
  #branch(at, input) {
    if (!this.mayAsk() || this.session.isAnswering) return false;
    this.session.branch(this.settings, at, input);
    return true;
  }

  /** Sends the outputs of calls once each call has one. */
  #giveOutput(call, output) {
    this.#outputs.set(call.call_id, callOutput(call, output));
    const { items } = this.session;
    const given = new Set(items.filter(isCallOutput).map((item) => item.call_id));
    const open = items.filter((item) => isCall(item) && !given.has(item.call_id));
    if (open.every((one) => this.#outputs.has(one.call_id))) this.say([...this.#outputs.values()]);
  }

  /** Looks where the model is while the answer waits, which may be for the model to be loaded. */
  async #watchModel() {
    if (this.#isWatching) return;
    this.#isWatching = true;
    await elapsed(FIRST_LOOK);
    while (this.session.isQueued) {
      await this.models.refresh();
      this.transcript.showWaiting();
      await elapsed(NEXT_LOOK);
    }
    this.#isWatching = false;
    if (!this.models.isLoaded) await this.models.refresh();
    this.showModel();
  }
}
