/** Runs the chat that is open: asks, follows, stops, branches. It tells of every change by events. */

import { archiveOf, importChats } from "./archive.js";
import { say } from "../core/language.js";
import { ServerError } from "../core/server.js";
import { departure, rootOf } from "./branches.js";
import { saysAnything, stopped } from "./items.js";
import { requestBody, withMetrics } from "./settings.js";
import { Titles, titleOf } from "./titles.js";
import { Turn } from "./turn.js";

/**
 * The open chat. Events: `opened`: everything is another; `asked`: there is a turn; `answering`: the
 * answer has grown; `answered`: the turn is over, its items are the chat's unless it has failed;
 * `listed`: the list of chats has changed; `counted`: the tokens of the prompt are known.
 */
export class ChatSession extends EventTarget {
  /** @type {import("./branches.js").Chat|null} null = it has not begun. */
  chat = null;
  /** @type {Object[]} the items of the conversation. */
  items = [];
  /** @type {Turn|null} */
  turn = null;
  /** @type {Map<string, import("./branches.js").Chat>} all that are known, by id. */
  chats = new Map();
  /** The tokens of the last prompt, and of what was said before; 0 = not known. */
  #numBefore = 0;
  #store;
  #opening = 0;

  constructor(store) {
    super();
    this.#store = store;
    this.titles = new Titles(store, () => this.#tell("listed"));
  }

  get lasting() {
    return this.#store.lasting;
  }

  /** Whether the answer has not begun: it waits for its turn, or for its model. */
  get isQueued() {
    return this.turn?.answer.status === "queued";
  }

  get isAnswering() {
    return this.turn !== null && !this.turn.answer.isFinal;
  }

  /** How many tokens of the context the chat takes; 0 = not known. */
  get numTokens() {
    return this.#numBefore && this.#numBefore + (this.turn?.answer.numPieces ?? 0);
  }

  /** Begins an empty chat, which is kept once something is said. */
  begin() {
    this.#open(null, []);
  }

  /**
   * Opens a chat, with the answer that runs in it, if one does.
   *
   * @param {string} id
   * @returns {Promise<Object|null>} its last response, for its settings.
   * @throws {ServerError} it is not there.
   */
  async open(id) {
    const opening = ++this.#opening;
    const { chat, items, response, input } = await this.#store.load(id);
    if (opening !== this.#opening) return null;
    this.chats.set(chat.id, chat);
    this.#open(chat, items);
    this.#numBefore = response?.usage?.total_tokens ?? 0;
    if (input) {
      const turn = this.#newTurn(input, null);
      turn.becomeKnown();
      this.#follow(turn, this.#store.follow(chat, (isLost) => this.#lose(turn, isLost)));
    }
    return response;
  }

  /** Opens the chat again if another device has gone on with it. */
  async refresh() {
    const { chat } = this;
    if (!chat || this.isAnswering || !this.lasting) return;
    const now = await this.#store.get(chat.id).catch(() => null);
    if (now && this.chat === chat && now.metadata.answer !== chat.metadata.answer) await this.open(chat.id);
  }

  /**
   * Asks for an answer.
   *
   * @param {import("./settings.js").Settings} settings
   * @param {Object[]} input items.
   */
  async ask(settings, input) {
    // What has failed was never answered: it is asked together with what is new.
    const whole = this.turn ? [...this.turn.input, ...input] : input;
    const turn = this.#newTurn(whole, performance.now());
    try {
      if (!this.chat) {
        const chat = await this.#create({ title: titleOf(whole) }, []);
        // Whoever has opened another one meanwhile has left this.
        if (this.turn !== turn) return;
        this.chat = chat;
      }
      this.chat.metadata = { ...this.chat.metadata, answer: this.#store.newAnswer() };
      this.#tell("listed");
    } catch (error) {
      this.#fail(turn, error);
      return;
    }
    const body = withMetrics(requestBody(settings, whole));
    this.#count(turn, body);
    await this.#follow(turn, this.#store.start(this.chat, body, (isLost) => this.#lose(turn, isLost)));
  }

  /** Asks the model to continue its last answer, which was cut. */
  async continueAnswer(settings) {
    await this.ask(settings, []);
  }

  /** Asks once more for what has failed. */
  async askAgain(settings) {
    const { input } = this.turn;
    this.turn = null;
    await this.ask(settings, input);
  }

  /** Takes back what has failed, so that the chat goes on without it. */
  discard() {
    this.turn = null;
    this.#tell("opened");
  }

  /**
   * Begins a branch at a message of the user, and asks what stands in its place.
   *
   * @param {import("./settings.js").Settings} settings
   * @param {number} at the message's position among the items.
   * @param {Object[]} input the message, edited or not.
   */
  async branch(settings, at, input) {
    const { chat, items } = this;
    const kept = items.slice(0, at);
    // A chat that is called by its first message gets another title with another first message.
    const isFirst = titleOf(kept) === "" && (!chat.metadata.title || chat.metadata.title === titleOf(items));
    const title = isFirst ? titleOf(input) : chat.metadata.title;
    const metadata = { ...(title ? { title } : {}), ...departure(this.chats, chat, at) };
    const branch = await this.#create(metadata, kept);
    if (this.chat !== chat) return;
    this.#open(branch, kept);
    await this.ask(settings, input);
  }

  /**
   * Stops the answer that runs: at once, or when the server knows it. What it has said so far stays.
   *
   * @throws {ServerError} the server could not be asked, or has refused.
   */
  async stop() {
    await this.turn?.stop();
  }

  /**
   * Deletes a chat with all its branches.
   *
   * @param {import("./branches.js").Chat} chat
   */
  async remove(chat) {
    const family = this.#familyOf(chat);
    await Promise.all(family.map((one) => this.#store.remove(one.id)));
    for (const one of family) this.chats.delete(one.id);
    if (family.some((one) => one.id === this.chat?.id)) this.begin();
    this.#tell("listed");
  }

  /**
   * Reads a further page of the list of chats into `chats`.
   *
   * @param {string|null} after
   * @returns {Promise<{last: string|null, hasMore: boolean}>}
   */
  async list(after) {
    const page = await this.#store.list(after);
    for (const chat of page.chats) if (chat.id !== this.chat?.id) this.chats.set(chat.id, chat);
    this.#tell("listed");
    this.titles.find(page.chats);
    return { last: page.chats.at(-1)?.id ?? null, hasMore: page.hasMore };
  }

  /** Gives a chat with all its branches another title. */
  async rename(chat, title) {
    const family = this.#familyOf(chat);
    for (const one of family) one.metadata = { ...one.metadata, title };
    this.#tell("listed");
    await Promise.all(family.map((one) => this.#store.note(one)));
  }

  /** Returns all chats as a file has them. */
  async archive() {
    for (let last = null, hasMore = true; hasMore;) ({ last, hasMore } = await this.list(last));
    return archiveOf(this.#store, this.chats.values());
  }

  /**
   * Makes chats of those of a file.
   *
   * @throws {ServerError} one was refused; those before it are there.
   */
  async importAll(chats) {
    try {
      for await (const chat of importChats(this.#store, chats)) this.chats.set(chat.id, chat);
    } finally {
      this.#tell("listed");
    }
  }

  /** Asks how many tokens the prompt has. It is for show: nothing waits for it. */
  async #count(turn, body) {
    const count = await this.#store.count(this.chat, body).catch(() => 0);
    if (this.turn !== turn || !count) return;
    this.#numBefore = count;
    this.#tell("counted");
  }

  #familyOf(chat) {
    const root = rootOf(this.chats, chat);
    return [...this.chats.values()].filter((one) => rootOf(this.chats, one) === root);
  }

  async #create(metadata, items) {
    const chat = await this.#store.create(metadata, items);
    this.chats.set(chat.id, chat);
    return chat;
  }

  #open(chat, items) {
    this.#opening++;
    this.chat = chat;
    this.items = items;
    this.turn = null;
    this.#numBefore = 0;
    this.#tell("opened");
  }

  #newTurn(input, startedAt) {
    const turn = new Turn(input, startedAt, this.#store, () => this.turn === turn && this.#tell("answering"));
    this.turn = turn;
    this.#tell("asked");
    return turn;
  }

  async #follow(turn, events) {
    const { chat } = this;
    turn.chat = chat;
    try {
      for await (const event of events) {
        // Whoever opens another chat leaves this one, whose answer goes on without a reader.
        if (this.turn !== turn && !turn.isStopping) return;
        turn.becomeKnown();
        turn.answer.push(event, performance.now());
        if (!turn.answer.isFinal && this.turn === turn) this.#tell("answering");
      }
      if (turn.answer.status === "cancelled") {
        turn.answer.output = stopped(turn.answer.output.filter(saysAnything));
        await this.#store.keepStopped(chat, turn);
      }
    } catch (error) {
      this.#fail(turn, error);
      return;
    }
    if (this.turn !== turn) return;
    if (turn.answer.status !== "failed") {
      this.items = [...this.items, ...turn.input, ...turn.answer.output];
      this.turn = null;
      this.#numBefore = turn.answer.usage?.total_tokens ?? 0;
    }
    this.#tell("answered", turn);
  }

  #fail(turn, error) {
    if (!(error instanceof ServerError)) throw error;
    turn.answer.status = "failed";
    turn.answer.failure = error.status ? error.message : say("unreachable");
    if (this.turn === turn) this.#tell("answered", turn);
  }

  #lose(turn, isLost) {
    turn.isLost = isLost;
    if (this.turn === turn) this.#tell("answering");
  }

  #tell(type, detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
