/** Lists all models with their states, and lets operators load and unload them. */

import { elapsed, iconButton, make } from "../core/dom.js";
import { put, say, showNumber } from "../core/language.js";
import { stateOf } from "../core/models.js";
import { ServerError, ask } from "../core/server.js";

/** Milliseconds between two looks at the states while the dialog is open. */
const LOOK = 1000;

const MOVING = ["loading", "unloading"];

/**
 * Opens the dialog.
 *
 * @param {function(): void} onClose
 */
export async function openModels(onClose) {
  const fault = make("p", { class: "fault", role: "alert", hidden: true });
  const list = make("ul", { class: "model-list" });
  const dialog = make("dialog", { "aria-labelledby": "models-title" },
    make("header", { class: "row" }, make("h2", { text: "models.title", id: "models-title" }), iconButton("close", "close", () => dialog.close())),
    list, fault, make("p", { class: "faint", text: "models.note" }));
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  const tell = (error) => {
    if (!(error instanceof ServerError)) throw error;
    fault.hidden = false;
    fault.textContent = error.status ? error.message : say("unreachable");
  };
  const rows = new Map();
  const look = async () => {
    const { data } = await ask("GET", "v1/models");
    for (const [id, row] of rows) if (!data.some((model) => model.id === id) && rows.delete(id)) row.node.remove();
    for (const model of data) {
      if (!rows.has(model.id)) {
        rows.set(model.id, new ModelRow(model.id, async (action) => {
          fault.hidden = true;
          // The server answers when the model is in memory, or out of it: until then the list says where it is.
          await ask("POST", `v1/models/${encodeURIComponent(model.id)}/${action}`, {}).catch(tell);
          await look().catch(tell);
        }));
        list.append(rows.get(model.id).node);
      }
      rows.get(model.id).show(model);
    }
  };
  document.body.append(dialog);
  dialog.showModal();
  for (; dialog.open; await elapsed(LOOK)) await look().catch(tell);
}

/** A model: its name, where it is, and what can be done with it. */
class ModelRow {
  /**
   * @param {string} id
   * @param {function(string): void} onAct is told "load" or "unload".
   */
  constructor(id, onAct) {
    this.#state = make("span", { class: "faint" });
    this.#progress = make("progress", { label: "models.progress" });
    this.#reason = make("p", { class: "fault" });
    this.#load = make("button", { type: "button", text: "models.load", on: { click: () => onAct("load") } });
    this.#unload = make("button", { type: "button", text: "models.unload", on: { click: () => onAct("unload") } });
    this.node = make("li", {}, make("div", {}, make("strong", {}, id), this.#state, this.#progress, this.#reason), this.#load, this.#unload);
    for (const button of [this.#load, this.#unload]) put(button, "aria-label", button === this.#load ? "models.load-this" : "models.unload-this", { model: id });
  }

  #state;
  #progress;
  #reason;
  #load;
  #unload;
  #movesSince = null;

  show(model) {
    const state = stateOf(model);
    const isMoving = MOVING.includes(state);
    this.#movesSince = isMoving ? this.#movesSince ?? performance.now() : null;
    const seconds = isMoving ? Math.round((performance.now() - this.#movesSince) / 1000) : 0;
    const tokens = model.max_model_len;
    if (isMoving) put(this.#state, "text", `models.${state}`, { seconds: showNumber(seconds) });
    else if (state === "loaded" && tokens) put(this.#state, "text", "models.loaded-with", { tokens: showNumber(tokens) });
    else put(this.#state, "text", `models.${state}`);
    this.#progress.hidden = !isMoving;
    this.#reason.textContent = model.status?.reason ?? "";
    this.#reason.hidden = state !== "failed";
    this.#load.hidden = state !== "unloaded" && state !== "failed";
    this.#unload.hidden = state !== "loaded";
  }
}
