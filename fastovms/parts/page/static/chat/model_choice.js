/** Lets the user choose a model, and shows which of the models are in memory. */

import { make } from "../core/dom.js";
import { put } from "../core/language.js";
import { encodes, stateOf } from "../core/models.js";
import { ServerError, ask } from "../core/server.js";

export class ModelChoice {
  /**
   * @param {Object[]} models as the server lists them, those that chat.
   * @param {function(string): void} onChoose is told the id of the model that the user has chosen.
   */
  constructor(models, onChoose) {
    this.#options = new Map();
    this.node = make("select", { label: "chat.choose-model", class: "model" });
    this.node.addEventListener("change", () => onChoose(this.node.value));
    for (const event of ["focus", "pointerenter"]) this.node.addEventListener(event, () => this.refresh());
    this.#show(models);
  }

  #options;
  #models = [];

  /** @returns {Object|undefined} the model that is chosen. */
  get chosen() {
    return this.#models.find(({ id }) => id === this.node.value);
  }

  /** Whether the chosen model is in memory, or the server does not say. */
  get isLoaded() {
    return stateOf(this.chosen) === "loaded";
  }

  /**
   * Chooses a model, or the first one if there is none with this id.
   *
   * @param {string} id
   * @returns {Object|undefined} the model.
   */
  choose(id) {
    const model = this.#models.find((one) => one.id === id) ?? this.#models[0];
    if (model) this.node.value = model.id;
    return model;
  }

  /** Asks the server where the models are. */
  async refresh() {
    try {
      this.#show((await ask("GET", "v1/models")).data.filter((model) => !encodes(model)));
    } catch (error) {
      if (!(error instanceof ServerError)) throw error; // what is known stays
    }
  }

  /** Shows models; options stay the same nodes, so that an open list stays open. */
  #show(models) {
    this.#models = models;
    const ids = new Set(models.map(({ id }) => id));
    for (const [id, option] of this.#options) {
      if (ids.has(id)) continue;
      option.remove();
      this.#options.delete(id);
    }
    for (const model of models) {
      if (!this.#options.has(model.id)) this.#options.set(model.id, this.node.appendChild(make("option", { value: model.id })));
      const option = this.#options.get(model.id);
      const state = stateOf(model);
      if (option.dataset.state === state) continue;
      option.dataset.state = state;
      put(option, "text", `model.${state}`, { model: model.id });
    }
  }
}
