/** Lists the chats, the newest first: one entry for a chat with all its branches. */

import { iconButton, make } from "../core/dom.js";
import { say } from "../core/language.js";
import { rootOf } from "../session/branches.js";

export class ChatList {
  /**
   * @param {import("../session/chat_session.js").ChatSession} session
   * @param {function(string): void} onOpen is told a chat's id.
   */
  constructor(session, onOpen) {
    this.#session = session;
    this.#onOpen = onOpen;
    this.#list = make("ul", { class: "chat-list" });
    this.#more = make("button", { type: "button", class: "link", text: "chats.more", hidden: true, on: { click: () => this.load() } });
    this.node = make("nav", { class: "chats", label: "chats.label" }, this.#list, this.#more);
    session.addEventListener("listed", () => this.#draw());
    session.addEventListener("opened", () => this.#draw());
  }

  #session;
  #onOpen;
  #list;
  #more;
  #last = null;

  /** Reads the next page. */
  async load() {
    const { last, hasMore } = await this.#session.list(this.#last);
    this.#last = last;
    this.#more.hidden = !hasMore;
  }

  #draw() {
    const { chats, chat: open } = this.#session;
    // Of each family, the branch that is open stands for all of it, or else the one that was begun last.
    const newest = new Map();
    for (const chat of chats.values()) {
      const root = rootOf(chats, chat);
      const other = newest.get(root.id);
      if (chat === open || !other || (other !== open && created(chat) > created(other))) newest.set(root.id, chat);
    }
    const openRoot = open && rootOf(chats, open).id;
    const entries = [...newest].sort(([, one], [, other]) => created(other) - created(one));
    this.#list.replaceChildren(...entries.map(([root, chat]) => this.#entry(chat, root === openRoot)));
  }

  #entry(chat, isOpen) {
    const title = this.#session.titles.of(chat) || say("chats.untitled");
    const link = make("a", { href: `#chat/${chat.id}`, "aria-current": isOpen ? "page" : null, title, dir: "auto" }, title);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      this.#onOpen(chat.id);
    });
    const remove = iconButton("trash", "chats.delete", () => {
      if (confirm(say("chats.really", { title }))) this.#session.remove(chat);
    });
    return make("li", {}, link, remove);
  }
}

const created = (chat) => chat.created_at ?? 0;
