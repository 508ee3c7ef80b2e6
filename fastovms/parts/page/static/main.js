/** Starts the page: finds the server's models and chats, and shows the chat or the live engine. */

import { loadColours } from "./answer/colours.js";
import { loadMarkdown } from "./answer/markdown.js";
import { ChatView } from "./chat/chat_view.js";
import { Reading } from "./chat/reading.js";
import { ServerChats } from "./session/server_chats.js";
import { TabChats } from "./session/tab_chats.js";
import { drawIcon, elapsed, iconButton, make, warn } from "./core/dom.js";
import { apply, choose, language, say } from "./core/language.js";
import { encodes, makesImages, speaks, transcribes } from "./core/models.js";
import { ROOT, ServerError, ask } from "./core/server.js";
import { LANGUAGES } from "./core/texts.js";
import { THEMES, applyTheme, chooseTheme, theme } from "./core/theme.js";

applyTheme();

const LOADING_PAUSE = 1000;
const LIVE = "#live";
const COMPARE = "#compare";
const IMAGES = "#images";

/** Resolves with the list of models, once the server has loaded them. */
async function findModels(onWait) {
  for (;;) {
    try {
      return (await ask("GET", "v1/models")).data;
    } catch (error) {
      if (!(error instanceof ServerError) || (error.status !== 503 && error.status !== 0)) throw error;
      onWait(error.message);
      await elapsed(LOADING_PAUSE);
    }
  }
}

/** Returns what keeps chats: the server, unless it keeps nothing. */
async function findStore() {
  const store = new ServerChats();
  try {
    await store.list(null);
    return store;
  } catch (error) {
    if (error instanceof ServerError && error.status === 400) return new TabChats();
    throw error;
  }
}

/** Returns the id of the chat that an address names; "" = an empty chat, null = another view. */
function chatOf(hash) {
  const found = /^#chat(?:\/(.+))?$/.exec(hash);
  return found && (found[1] ?? "");
}

/** Makes the frame around both views. */
function buildFrame() {
  const body = make("div", { class: "view" });
  const side = make("div", { class: "side-place" });
  const sidebar = make("header", { class: "sidebar", id: "sidebar" });
  const menu = iconButton("menu", "menu", () => show(sidebar.classList.toggle("open")), { "aria-expanded": "false", "aria-controls": "sidebar", class: "icon-button menu" });
  const show = (isOpen) => menu.setAttribute("aria-expanded", String(isOpen));
  const chat = make("a", { href: "#chat" }, drawIcon("chat"), make("span", { text: "view.chat" }));
  const compare = make("a", { href: COMPARE }, drawIcon("columns"), make("span", { text: "view.compare" }));
  const images = make("a", { href: IMAGES }, drawIcon("image"), make("span", { text: "view.images" }));
  const live = make("a", { href: LIVE }, drawIcon("pulse"), make("span", { text: "view.live" }));
  const languages = make("select", { label: "language" }, ...LANGUAGES.map(({ tag, name }) => make("option", { value: tag, lang: tag }, name)));
  languages.value = language();
  languages.addEventListener("change", () => choose(languages.value));
  const themes = make("select", { label: "theme" }, ...THEMES.map((name) => make("option", { value: name, text: `theme.${name}` })));
  themes.value = theme();
  themes.addEventListener("change", () => chooseTheme(themes.value));
  sidebar.append(
    make("div", { class: "brand" }, make("img", { src: new URL("icon.svg", import.meta.url).href, alt: "", width: "24", height: "24" }), make("span", {}, "fastovms")),
    make("nav", { class: "views", label: "views" }, chat, compare, images, live),
    side,
    make("div", { class: "row foot" }, languages, themes, make("a", { href: new URL("docs", ROOT).href, class: "faint" }, drawIcon("book"), make("span", { text: "api" }))));
  sidebar.addEventListener("click", ({ target }) => {
    if (target.closest("a, .new-chat")) show(sidebar.classList.toggle("open", false));
  });
  sidebar.addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && sidebar.classList.contains("open")) {
      show(sidebar.classList.toggle("open", false));
      menu.focus();
    }
  });
  const bar = make("div", { class: "bar" }, menu);
  document.body.append(make("a", { href: "#main", class: "skip", text: "skip" }), sidebar, make("main", { class: "content", id: "main", tabindex: "-1" }, bar, body),
    make("div", { id: "announcer", class: "off-screen", role: "status", "aria-live": "polite" }));
  apply(document);
  return { body, bar, side, links: { chat, compare, images, live } };
}

async function start() {
  const frame = buildFrame();
  const waiting = make("p", { class: "empty faint", role: "status", text: "loading" });
  frame.body.append(waiting);
  const finding = findStore().catch(() => null);
  const models = await findModels((reason) => { waiting.textContent = reason; });
  const chatting = models.filter((model) => !encodes(model));
  // A server that was still loading has refused the first request.
  const reading = new Reading(models.find(speaks)?.id);
  const chats = new ChatView((await finding) ?? (await findStore()), chatting, reading);
  chats.dictateTo(models.find(transcribes)?.id);
  const begin = make("button", { type: "button", class: "new-chat", on: { click: () => { location.hash = "#chat"; chats.begin(); } } },
    drawIcon("plus"), make("span", { text: "chats.new" }));
  frame.side.append(begin, chats.list.node);
  // Models that encode texts chat with nobody.
  const isOnlyLive = models.length > 0 && !chatting.length;
  const making = models.filter(makesImages);
  frame.links.images.hidden = !making.length;
  for (const node of [frame.links.chat, frame.links.compare, begin]) node.hidden = isOnlyLive;
  frame.bar.append(chats.tools);
  frame.links.chat.addEventListener("click", () => { frame.links.chat.href = chats.address; });
  let live = null;
  let compare = null;
  let images = null;

  async function show() {
    const isImages = making.length > 0 && location.hash === IMAGES;
    const isLive = !isImages && (isOnlyLive || location.hash === LIVE);
    const isCompare = !isLive && location.hash === COMPARE;
    if (isLive) live ??= new (await import("./live/live_view.js")).LiveView(models);
    if (isCompare) compare ??= new (await import("./compare/compare_view.js")).CompareView(chatting, reading);
    if (isImages) images ??= new (await import("./images/images_view.js")).ImagesView(making);
    const view = isLive ? live : isCompare ? compare : isImages ? images : chats;
    frame.body.replaceChildren(view.node);
    chats.tools.hidden = view !== chats;
    frame.links.chat.toggleAttribute("aria-current", view === chats);
    frame.links.compare.toggleAttribute("aria-current", isCompare);
    frame.links.images.toggleAttribute("aria-current", isImages);
    frame.links.live.toggleAttribute("aria-current", isLive);
    if (isLive) live.start();
    else live?.stop();
    apply(document);
  }

  const opened = chatOf(location.hash);
  await show();
  performance.mark("interactive");
  await chats.list.load();
  if (opened) await chats.open(opened);
  addEventListener("hashchange", async () => {
    const id = chatOf(location.hash);
    await show();
    if (id !== null) await chats.go(id);
  });
  (globalThis.requestIdleCallback ?? setTimeout)(() => loadMarkdown().then(loadColours));
  document.documentElement.dataset.ready = "";
}

// What a click has asked for, and the server refuses or does not hear.
addEventListener("unhandledrejection", (event) => {
  if (!(event.reason instanceof ServerError)) return;
  event.preventDefault();
  warn(event.reason.status ? event.reason.message : say("unreachable"));
});

start().catch((error) => {
  document.getElementById("main").replaceChildren(make("div", { class: "card failure", role: "alert" }, String(error.message ?? error)));
});
