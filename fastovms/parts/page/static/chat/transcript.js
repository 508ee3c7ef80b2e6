/** Shows the messages of a chat, the turn that runs among them, as far as they are near the screen. */

import { AnswerView, hasTokens } from "../answer/answer_view.js";
import { onceAFrame } from "../answer/frame.js";
import { showMarkdown } from "../answer/markdown.js";
import { keepStatistics, keptStatistics, statisticsLine, statisticsOf } from "../answer/statistics.js";
import { timingBar } from "../answer/timing_bar.js";
import { announce, copyText, iconButton, make } from "../core/dom.js";
import { put, say } from "../core/language.js";
import { canContinue, cutOf, filesOf, groups, imagesOf, isUserMessage, joined, lastQuestion, ownTextOf, textOf } from "../session/items.js";
import { EndFollower } from "./end_follower.js";
import { editMessage } from "./message_editor.js";
import { NearDrawing } from "./near_drawing.js";

/**
 * What the transcript asks of the chat.
 *
 * @typedef {Object} Actions
 * @property {function(number, Object): boolean} onEdit is told the position of a message and the new one, and says whether it is asked.
 * @property {function(number): void} onRegenerate is told the position of the message to answer anew.
 * @property {function(): void} onRetry asks again for what has failed.
 * @property {function(Object, string): void} onOutput is told a call and its output.
 * @property {function(string): void} onVariant is told the id of the branch to show.
 * @property {function(): void} onContinue lets the model continue the answer that was cut, or answer the last message.
 * @property {import("./reading.js").Reading} reading
 * @property {function(): string} waitsForModel returns the id of the model that is not yet loaded; "" = it is.
 * @property {function(number): {ids: string[], current: number}} variantsAt
 */

/** Longer messages of the user, such as logs, are shown as they are written: Markdown of them would take seconds. */
const MAX_MARKDOWN = 50_000;

/** What is said of an answer that was cut, by its reason. */
const CUT_SENTENCES = { limit: "cut.limit", stopped: "cut.stopped" };

export class Transcript {
  /**
   * @param {import("../session/chat_session.js").ChatSession} session
   * @param {Actions} actions
   * @param {string} label key of the name that assistive technology says.
   */
  constructor(session, actions, label = "chat.messages") {
    this.#session = session;
    this.#actions = actions;
    this.#list = make("div", { class: "messages", role: "log", "aria-live": "off", label });
    this.node = make("div", { class: "transcript", tabindex: "0", role: "region", label }, this.#list);
    this.#near = new NearDrawing(this.node);
    this.#end = new EndFollower(this.node, this.#list);
    const draw = onceAFrame(() => this.#drawTurn());
    session.addEventListener("opened", () => this.#drawAll());
    session.addEventListener("asked", () => this.#drawTurn());
    session.addEventListener("answering", draw);
    session.addEventListener("answered", (event) => this.#endTurn(event.detail));
  }

  #session;
  #actions;
  #list;
  #near;
  #end;
  #turn = null;

  /** Shows the variants of messages again, once more chats are known. */
  showVariants() {
    for (const node of this.#list.querySelectorAll("[data-at]")) this.#putVariants(node);
  }

  /** Begins to edit the last message of the user. */
  editLast() {
    [...this.#list.querySelectorAll(".message.user .edit")].at(-1)?.click();
  }

  #drawAll() {
    this.#near.clear();
    this.#turn = null;
    this.#list.replaceChildren();
    this.#append(this.#session.items, 0);
    this.#drawTurn();
    this.#end.toEnd();
    this.#actions.reading.stopIfGone();
  }

  /**
   * Appends items that stand in the chat from a position on.
   *
   * @param {Object[]} items
   * @param {number} first their position.
   * @param {{node: Element, view: AnswerView}|null} [drawn] what is at the end of the list, and shows the
   *   last answer already: it stays there, as a long answer takes long to be laid out anew.
   */
  #append(items, first, drawn = null) {
    for (const group of groups(items, first)) {
      const isLast = group.end === first + items.length;
      if (isLast && drawn) this.#fill(drawn.node, drawn.view, group, true);
      else this.#list.insertBefore(group.isUser ? this.#userMessage(group) : this.#answer(group, isLast), drawn?.node ?? null);
    }
  }

  #userMessage({ items: [item], start, end }) {
    const body = make("div", { class: "text markdown" });
    const text = ownTextOf(item);
    const pictures = imagesOf(item).map(picture);
    const tools = make("div", { class: "tools" },
      iconButton("edit", "chat.edit", () => editMessage(node.querySelector(".bubble"), item, (edited) => this.#actions.onEdit(start, edited)), { class: "icon-button edit" }),
      iconButton("copy", "chat.copy", () => this.#copy(text)));
    const node = make("article", { class: "message user", label: "chat.you", "data-at": String(start) },
      make("div", { class: "bubble" }, ...pictures, ...filesOf(item).map(attachedFile), body), tools);
    if (text.length > MAX_MARKDOWN) showPlain(body, text);
    else this.#whenNear(node, body, text, () => showMarkdown(body, text, { breaks: true }));
    if (!this.#session.turn && end === this.#session.items.length) node.append(this.#unanswered());
    this.#putVariants(node);
    return node;
  }

  /** Says that the chat's last message has no answer, as one that was stopped before it began, and offers to ask for one. */
  #unanswered() {
    return make("p", { class: "cut unanswered" }, make("span", { text: "chat.failed" }),
      make("button", { type: "button", text: "chat.regenerate", on: { click: this.#actions.onContinue } }));
  }

  #answer(group, isLast) {
    const view = new AnswerView(this.#actions.onOutput);
    const node = make("article", { class: "message", label: "chat.model" }, view.node);
    this.#fill(node, view, group, isLast);
    return node;
  }

  /** Shows an answer below a node, which has its view. */
  #fill(node, view, { items, end, question }, isLast) {
    const text = joined(items).filter((item) => item.type === "message").map(textOf).join("\n\n");
    const isNow = isLast && end === this.#session.items.length;
    const draw = () => view.show(items, { isGrowing: false, isLast: isNow });
    if (isLast) draw();
    else this.#whenNear(node, view.node, text, draw);
    if (cutOf(items)) node.append(this.#cut(items, isNow));
    this.#finish(node, view, items, text, question, keptStatistics(items.at(-1).id));
  }

  /** Says why an answer ends where it does, and offers to continue the chat's last one. */
  #cut(items, isNow) {
    const why = make("span", { text: CUT_SENTENCES[cutOf(items)] });
    const more = isNow && canContinue(items) ? make("button", { type: "button", text: "cut.continue", on: { click: this.#actions.onContinue } }) : null;
    return make("p", { class: "cut" }, why, more);
  }

  /** Puts below an answer what can be done with it, and what it took. */
  #finish(node, view, items, text, question, statistics) {
    const tools = make("div", { class: "tools" }, iconButton("copy", "chat.copy", () => this.#copy(text)), this.#actions.reading.button(text));
    if (question !== null) tools.append(iconButton("again", "chat.regenerate", () => this.#actions.onRegenerate(question)));
    if (hasTokens(items)) {
      const toggle = iconButton("tokens", "tokens.show", () => toggle.setAttribute("aria-pressed", view.toggleTokens()), { "aria-pressed": "false" });
      tools.append(toggle);
    }
    if (statistics?.phases) {
      const bar = timingBar(statistics);
      bar.hidden = true;
      const toggle = iconButton("clock", "timing.show", () => toggle.setAttribute("aria-pressed", String(!(bar.hidden = !bar.hidden))), { "aria-pressed": "false" });
      tools.append(toggle);
      node.append(bar);
    }
    if (statistics) tools.append(statisticsLine(statistics));
    node.append(tools);
  }

  // The turn that runs, or has failed

  #drawTurn() {
    const { turn } = this.#session;
    if (!turn) return;
    if (this.#turn?.turn !== turn) this.#beginTurn(turn);
    const { view, state, carried } = this.#turn;
    const isGrowing = !turn.answer.isFinal;
    view.show([...carried, ...turn.input.filter((item) => !isUserMessage(item)), ...turn.answer.output], { isGrowing, isLast: false });
    state.className = turn.isLost ? "state fault" : "state";
    state.hidden = !isGrowing || (turn.answer.output.length > 0 && !turn.isLost && !turn.isStopping);
    this.showWaiting();
  }

  /** Says what the turn waits for. */
  showWaiting() {
    if (!this.#turn) return;
    const { turn, state } = this.#turn;
    const model = turn.answer.status === "queued" ? this.#actions.waitsForModel() : "";
    if (turn.isLost) put(state, "text", "chat.lost");
    else if (turn.isStopping) put(state, "text", "chat.stopping");
    else if (model) put(state, "text", "chat.loading", { model });
    else put(state, "text", turn.answer.status === "queued" ? "chat.queued" : "chat.thinking");
  }

  #beginTurn(turn) {
    const { items } = this.#session;
    // A turn that has failed may have begun within an answer, which is shown as it was.
    if (this.#turn) this.#redrawFrom(lastQuestion(items, items.length));
    this.#list.querySelector(".unanswered")?.remove();
    const messages = turn.input.filter(isUserMessage);
    // The outputs of tools go on with the answer that has made the calls.
    const carried = messages.length ? [] : items.slice(lastQuestion(items, items.length) + 1);
    if (carried.length && !this.#list.lastElementChild?.classList.contains("user")) this.#list.lastElementChild?.remove();
    const before = this.#list.children.length;
    this.#append(messages, items.length);
    const view = new AnswerView(this.#actions.onOutput);
    const state = make("p", { class: "state", role: "status" });
    const node = make("article", { class: "message", label: "chat.model", "aria-busy": "true" }, view.node, state);
    this.#list.append(node);
    for (const added of [...this.#list.children].slice(before)) added.querySelector(".tools")?.replaceChildren();
    this.#turn = { turn, view, state, node, carried, nodes: [...this.#list.children].slice(before) };
    this.#end.toEnd();
  }

  #endTurn(turn) {
    this.#drawTurn();
    if (turn.answer.status === "failed") this.#showFailure(turn);
    else this.#settle(turn);
  }

  #showFailure(turn) {
    const { node, state } = this.#turn;
    node.removeAttribute("aria-busy");
    state.hidden = true;
    const why = make("p", {}, turn.answer.failure);
    node.append(make("div", { class: "card failure", role: "alert" }, make("strong", { text: "chat.failed" }), why,
      make("div", { class: "row" }, make("button", { type: "button", text: "chat.regenerate", on: { click: this.#actions.onRetry } }),
        make("button", { type: "button", text: "chat.discard", on: { click: () => this.#session.discard() } }))));
  }

  /** Shows what has ended as part of the chat. */
  #settle(turn) {
    const first = this.#session.items.length - turn.input.length - turn.answer.output.length;
    const statistics = statisticsOf(turn.answer);
    const last = turn.answer.output.at(-1);
    if (statistics && last) keepStatistics(last.id, statistics);
    // The output of a tool belongs to the answer that made the call.
    const { node, view, state } = this.#turn;
    node.removeAttribute("aria-busy");
    state.remove();
    this.#redrawFrom(lastQuestion(this.#session.items, first), turn.answer.output.length ? { node, view } : null);
    announce(say(turn.answer.output.length ? CUT_SENTENCES[cutOf(turn.answer.output)] ?? "chat.answered" : "chat.failed"));
  }

  /** Shows the items from a position on anew, in place of the turn, of which `drawn` stays. */
  #redrawFrom(position, drawn = null) {
    const start = Math.max(0, position);
    for (const node of this.#turn?.nodes ?? []) if (node !== drawn?.node) node.remove();
    const shown = [...this.#list.children];
    const from = start ? shown.findIndex((node) => Number(node.dataset.at ?? -1) >= start) : 0;
    for (const node of from < 0 ? [] : shown.slice(from)) if (node !== drawn?.node) node.remove();
    this.#turn = null;
    this.#append(this.#session.items.slice(start), start, drawn);
    this.#actions.reading.stopIfGone();
  }

  // Parts of messages

  #putVariants(node) {
    node.querySelector(".variants")?.remove();
    const { ids, current } = this.#actions.variantsAt(Number(node.dataset.at));
    if (ids.length < 2) return;
    const count = make("span");
    put(count, "text", "chat.variant", { number: current + 1, count: ids.length });
    const step = (icon, label, by) => iconButton(icon, label, () => this.#actions.onVariant(ids[current + by]), { disabled: !ids[current + by] });
    node.querySelector(".tools").append(make("div", { class: "variants", role: "group", label: "chat.variants" },
      step("left", "chat.previous", -1), count, step("right", "chat.next", 1)));
  }

  #copy(text) {
    copyText(text).then(() => announce(say("copied")));
  }

  /** Shows a text as it is until its message comes near the screen: Markdown takes longer. */
  #whenNear(node, place, text, draw) {
    showPlain(place, text);
    this.#near.add(node, () => {
      place.textContent = "";
      place.classList.remove("plain");
      draw();
    });
  }
}

function showPlain(place, text) {
  place.textContent = text;
  place.classList.add("plain");
}

/** Shows an image that came with its message. Another would be loaded from elsewhere: it is told where. */
function picture(url) {
  if (url.startsWith("data:image/")) return make("img", { src: url, alt: say("chat.image"), loading: "lazy" });
  return make("p", { class: "faint" }, url);
}

/** Shows a file that came with a message: a text folded, of a PDF its name. */
function attachedFile({ name, text }) {
  if (text === undefined) return make("p", { class: "file file-chip", dir: "auto" }, name);
  return make("details", { class: "file" }, make("summary", { dir: "auto" }, name), make("pre", { tabindex: "0", labelled: name, dir: "auto" }, text));
}
