/**
 * Keeps chats on the server, as conversations whose answers run in the background: a reload, a second
 * device and a restart of the server find them.
 *
 * The items of an answer become the conversation's when it ends. Until then `metadata.answer` says
 * which response it is, written before the response is asked for, so that it is never lost.
 */

import { answerEvents } from "./answer_stream.js";
import { ServerError, ask } from "../core/server.js";
import { newResponseId } from "./items.js";

const PAGE = 100;
/** How many items are read to find the first message of the user. */
const HEAD = 5;
/** How many items the API takes in one request. */
const ITEMS_A_REQUEST = 20;

export class ServerChats {
  /** Whether chats outlive the tab. */
  lasting = true;

  /**
   * Lists chats, the newest first.
   *
   * @param {string|null} after the last one of the page before.
   * @returns {Promise<{chats: import("./branches.js").Chat[], hasMore: boolean}>}
   */
  async list(after) {
    const page = await ask("GET", `v1/conversations?limit=${PAGE}${after ? `&after=${after}` : ""}`);
    return { chats: page.data, hasMore: page.has_more };
  }

  /**
   * @param {Object} metadata
   * @param {Object[]} items
   * @returns {Promise<import("./branches.js").Chat>}
   */
  async create(metadata, items) {
    const chat = await ask("POST", "v1/conversations", { metadata, items: items.slice(0, ITEMS_A_REQUEST) });
    await this.#add(chat.id, items.slice(ITEMS_A_REQUEST));
    return chat;
  }

  /**
   * Loads a chat.
   *
   * @param {string} id
   * @returns {Promise<{chat: Object, items: Object[], response: Object|null, input: Object[]|null}>}
   *   `response`: the last one; `input`: what it was asked, unless that is among the items, because
   *   it runs or has failed.
   */
  async load(id) {
    const chat = await ask("GET", `v1/conversations/${id}`);
    // First the response: what ends between the two is then among the items.
    const response = await this.#response(chat.metadata.answer);
    const items = await this.items(id);
    let input = null;
    if (response && response.status !== "completed" && response.status !== "incomplete") {
      input = await all(`v1/responses/${response.id}/input_items`);
      const ids = new Set(items.map((item) => item.id));
      if (input.some((item) => ids.has(item.id))) input = null;
    }
    return { chat, items, response, input };
  }

  /** Returns the first items of a chat. */
  async head(id) {
    return (await ask("GET", `v1/conversations/${id}/items?order=asc&limit=${HEAD}`)).data;
  }

  /** Returns all items of a chat. */
  items(id) {
    return all(`v1/conversations/${id}/items`);
  }

  /** Returns how many tokens the prompt of a request has that continues a chat. */
  async count(chat, body) {
    return (await ask("POST", "v1/responses/input_tokens", { ...body, conversation: chat.id })).input_tokens;
  }

  /** Returns the chat as it is now, without its items. */
  get(id) {
    return ask("GET", `v1/conversations/${id}`);
  }

  /** Writes a chat's metadata down. */
  async note(chat) {
    await ask("POST", `v1/conversations/${chat.id}`, { metadata: chat.metadata });
  }

  async remove(id) {
    await ask("DELETE", `v1/conversations/${id}`);
  }

  /** @returns {string} the id of the next answer. */
  newAnswer() {
    return newResponseId();
  }

  /**
   * Asks for an answer, and yields its events.
   *
   * @param {import("./branches.js").Chat} chat whose `metadata.answer` is the new answer's.
   * @param {Object} body the request.
   * @param {function(boolean): void} onTrouble is told when the connection is lost and found.
   */
  async *start(chat, body, onTrouble) {
    await this.note(chat);
    const id = chat.metadata.answer;
    yield* answerEvents(id, { ...body, conversation: chat.id, request_id: id, background: true, stream: true }, onTrouble);
  }

  /** Yields the events of an answer that runs, or has ended, from the first one on. */
  follow(chat, onTrouble) {
    return answerEvents(chat.metadata.answer, null, onTrouble);
  }

  /** Stops an answer; its stream then ends. */
  async stop(chat) {
    await ask("POST", `v1/responses/${chat.metadata.answer}/cancel`, {});
  }

  /**
   * Keeps a stopped answer and what it was asked, which the server does not do by itself: under the
   * ids that they have there, by which `load` knows them again.
   *
   * @param {import("./branches.js").Chat} chat
   * @param {import("./turn.js").Turn} turn
   */
  async keepStopped(chat, turn) {
    const input = await all(`v1/responses/${chat.metadata.answer}/input_items`);
    await this.#add(chat.id, [...input, ...turn.answer.output]);
  }

  async #add(id, items) {
    for (let start = 0; start < items.length; start += ITEMS_A_REQUEST) {
      await ask("POST", `v1/conversations/${id}/items`, { items: items.slice(start, start + ITEMS_A_REQUEST) });
    }
  }

  async #response(id) {
    if (!id) return null;
    try {
      return await ask("GET", `v1/responses/${id}`);
    } catch (error) {
      if (error instanceof ServerError && error.status === 404) return null;
      throw error;
    }
  }
}

/** Returns all entries of a list of the API, the oldest first. */
async function all(path) {
  const found = [];
  for (let after = ""; ; after = `&after=${found.at(-1).id}`) {
    const page = await ask("GET", `${path}?order=asc&limit=${PAGE}${after}`);
    found.push(...page.data);
    if (!page.has_more) return found;
  }
}
