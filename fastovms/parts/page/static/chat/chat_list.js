/** Lists the chats, the newest first: one entry for a chat with all its branches. */

import { iconButton, make } from "../core/dom.js";
import { say } from "../core/language.js";
import { rootOf } from "../session/branches.js";
import { archiveButtons } from "./chat_archive.js";

export class ChatList {
  /** @param {import("../session/chat_session.js").ChatSession} session */
  constructor(session) {
    this.#session = session;
    this.#list = make("ul", { class: "chat-list" });
    this.#more = make("button", { type: "button", class: "link", text: "chats.more", hidden: true, on: { click: () => this.load() } });
    this.#search = make("input", { type: "search", label: "chats.search", hint: "chats.search", dir: "auto" });
    this.#none = make("p", { class: "faint", role: "status", text: "chats.none", hidden: true });
    this.#search.addEventListener("input", () => this.#find());
    this.node = make("nav", { class: "chats", label: "chats.label" }, this.#search,
      make("div", { class: "chats-scroll" }, this.#list, this.#none, this.#more), archiveButtons(session));
    session.addEventListener("listed", () => this.#draw());
    session.addEventListener("opened", () => this.#draw());
  }

  #session;
  #list;
  #more;
  #search;
  #none;
  #last = null;
  #renaming = null;

  /** Reads the next page. */
  async load() {
    const { last, hasMore } = await this.#session.list(this.#last);
    this.#last = last;
    this.#more.hidden = !hasMore;
  }

  /** Shows the chats whose title has what is searched for. All of them are read for that. */
  async #find() {
    this.#draw();
    while (this.#search.value && !this.#more.hidden) await this.load();
  }

  #draw() {
    if (this.#renaming?.isConnected) return; // what is being typed stays
    const { chats, chat: open } = this.#session;
    // Of each family, the branch that is open stands for all of it, or else the one that was begun last.
    const newest = new Map();
    for (const chat of chats.values()) {
      const root = rootOf(chats, chat);
      const other = newest.get(root.id);
      if (chat === open || !other || (other !== open && created(chat) > created(other))) newest.set(root.id, chat);
    }
    const openRoot = open && rootOf(chats, open).id;
    const words = this.#search.value.toLowerCase().split(/\s+/);
    const entries = [...newest].sort(([, one], [, other]) => created(other) - created(one));
    const found = entries.filter(([, chat]) => words.every((word) => this.#titleOf(chat).toLowerCase().includes(word)));
    this.#list.replaceChildren(...found.map(([root, chat]) => this.#entry(chat, root === openRoot)));
    this.#none.hidden = entries.length === 0 || found.length > 0;
  }

  #titleOf(chat) {
    return this.#session.titles.of(chat) || say("chats.untitled");
  }

  #entry(chat, isOpen) {
    const title = this.#titleOf(chat);
    const link = make("a", { href: `#chat/${chat.id}`, "aria-current": isOpen ? "page" : null, title, dir: "auto" }, title);
    const rename = iconButton("edit", "chats.rename", () => this.#rename(chat, entry));
    const remove = iconButton("trash", "chats.delete", () => {
      if (confirm(say("chats.really", { title }))) this.#session.remove(chat);
    });
    const entry = make("li", {}, link, make("div", { class: "chat-tools" }, rename, remove));
    return entry;
  }

  /** Puts a field in place of a chat's entry. */
  #rename(chat, entry) {
    const field = make("input", { type: "text", label: "chats.rename", dir: "auto", maxlength: "200" });
    field.value = this.#session.titles.of(chat);
    const form = make("form", {}, field);
    const end = (title) => {
      this.#renaming = null;
      if (title && title !== this.#session.titles.of(chat)) this.#session.rename(chat, title);
      this.#draw();
      this.#list.querySelector(`a[href="#chat/${chat.id}"]`)?.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end(field.value.trim());
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end("");
    });
    field.addEventListener("blur", () => this.#renaming && end(field.value.trim()));
    this.#renaming = form;
    entry.replaceChildren(form);
    field.select();
    field.focus();
  }
}

const created = (chat) => chat.created_at ?? 0;
