/** Names chats: by the title in their metadata, or by the first message of the user, which chats of API clients have alone. */

import { filesOf, isUserMessage, ownTextOf } from "./items.js";

/** Characters of a title: what the first message begins with. */
const MAX_TITLE = 60;

/**
 * Returns the title of a chat that begins with some items; "" = no message of the user has a text.
 *
 * @param {Object[]} items
 */
export function titleOf(items) {
  const message = items.find(isUserMessage);
  const said = message ? ownTextOf(message) || (filesOf(message)[0]?.name ?? "") : "";
  const text = said.trim().replace(/\s+/g, " ");
  return text.length > MAX_TITLE ? `${text.slice(0, MAX_TITLE - 1)}…` : text;
}

export class Titles {
  /**
   * @param {Object} store that keeps chats.
   * @param {function(): void} onFound is called when further titles are known.
   */
  constructor(store, onFound) {
    this.#store = store;
    this.#onFound = onFound;
  }

  #store;
  #onFound;
  #found = new Map();

  /**
   * Returns a chat's title; "" = it has none, or it is not yet known.
   *
   * @param {import("./branches.js").Chat} chat
   */
  of(chat) {
    return chat.metadata.title || this.#found.get(chat.id) || "";
  }

  /** Reads the titles of chats without one, one after the other. */
  async find(chats) {
    for (const chat of chats) {
      if (chat.metadata.title || this.#found.has(chat.id)) continue;
      this.#found.set(chat.id, "");
      const items = await this.#store.head(chat.id).catch(() => []);
      this.#found.set(chat.id, titleOf(items));
      this.#onFound();
    }
  }
}
