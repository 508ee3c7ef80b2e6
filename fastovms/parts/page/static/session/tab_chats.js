/** Keeps chats in this tab, where the server keeps none. It has the methods of `ServerChats`. */

import { ask, askEvents } from "../core/server.js";
import { newResponseId } from "./items.js";

export class TabChats {
  lasting = false;
  #chats = new Map();
  #items = new Map();
  #running = new Map();

  async list() {
    return { chats: [...this.#chats.values()].reverse(), hasMore: false };
  }

  async create(metadata, items) {
    const chat = { id: newResponseId().replace("resp", "tab"), metadata: { ...metadata } };
    this.#chats.set(chat.id, chat);
    this.#items.set(chat.id, [...items]);
    return chat;
  }

  async load(id) {
    return { chat: this.#chats.get(id), items: await this.items(id), response: null, input: null };
  }

  async head(id) {
    return this.#items.get(id);
  }

  async items(id) {
    return [...this.#items.get(id)];
  }

  async count(chat, body) {
    const request = { ...body, input: [...this.#items.get(chat.id), ...body.input] };
    return (await ask("POST", "v1/responses/input_tokens", request)).input_tokens;
  }

  async get(id) {
    return this.#chats.get(id);
  }

  async note(chat) {
    this.#chats.set(chat.id, chat);
  }

  async remove(id) {
    this.#chats.delete(id);
    this.#items.delete(id);
  }

  newAnswer() {
    return newResponseId();
  }

  async *start(chat, body) {
    const earlier = this.#items.get(chat.id);
    const request = { ...body, input: [...earlier, ...body.input], stream: true, store: false };
    const stop = new AbortController();
    this.#running.set(chat.id, stop);
    try {
      for await (const event of askEvents("POST", "v1/responses", request, stop.signal)) {
        const { response } = event;
        if (event.type === "response.completed" || event.type === "response.incomplete") {
          earlier.push(...body.input, ...response.output);
        }
        yield event;
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      yield { type: "response.incomplete", response: { status: "cancelled", usage: null } };
    } finally {
      this.#running.delete(chat.id);
    }
  }

  async *follow() {}

  async stop(chat) {
    this.#running.get(chat.id)?.abort();
  }

  async keepStopped(chat, { input, answer }) {
    this.#items.get(chat.id).push(...input, ...answer.output);
  }
}
