/** Lists the requests, answers in the background and batches that have not ended, and lets operators cancel them. */

import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";
import { ServerError, ask } from "../core/server.js";

/** What the live view itself asks for. */
const OWN = /\/(?:metrics|v1\/work)$/;

export class WorkList {
  constructor() {
    this.#list = make("ul", { class: "work-list" });
    this.node = make("section", { hidden: true }, make("h2", { text: "work.title" }), this.#list);
  }

  #list;
  #rows = new Map();
  #isRefused = false;

  /** Shows the work of now; nothing where the key is none of an operator. */
  async look() {
    if (this.#isRefused) return;
    let found = [];
    try {
      found = (await ask("GET", "v1/work")).data.filter(({ detail }) => !OWN.test(detail));
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      this.#isRefused = error.status === 403;
    }
    const ids = new Set(found.map(({ id }) => id));
    for (const [id, row] of this.#rows) if (!ids.has(id) && this.#rows.delete(id)) row.node.remove();
    for (const work of found) {
      if (!this.#rows.has(work.id)) {
        this.#rows.set(work.id, new Row(work));
        this.#list.append(this.#rows.get(work.id).node);
      }
      this.#rows.get(work.id).show(work);
    }
    this.node.hidden = !found.length;
  }
}

class Row {
  constructor({ id, detail }) {
    this.#steps = make("span", { class: "faint" });
    this.#bar = make("progress", { label: "models.progress" });
    const cancel = make("button", { type: "button", text: "cancel", on: { click: () => ask("POST", `v1/work/${encodeURIComponent(id)}/cancel`, {}) } });
    put(cancel, "aria-label", "work.cancel", { detail });
    this.node = make("li", {}, make("code", {}, detail), this.#steps, this.#bar, cancel);
  }

  #steps;
  #bar;

  show({ progress }) {
    this.#bar.hidden = this.#steps.hidden = !progress;
    if (!progress) return;
    const { done, total } = progress;
    put(this.#steps, "text", "work.step", { done: showNumber(done), total: showNumber(total) });
    this.#bar.max = total;
    this.#bar.value = done;
  }
}
