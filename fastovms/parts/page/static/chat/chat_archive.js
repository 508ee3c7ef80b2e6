/** Buttons that export all chats as one file, and import such a file. */

import { announce, make, saveAs, warn } from "../core/dom.js";
import { say } from "../core/language.js";
import { readArchive } from "../session/archive.js";

/**
 * Makes the row of buttons.
 *
 * @param {import("../session/chat_session.js").ChatSession} session
 */
export function archiveButtons(session) {
  const chooser = make("input", { type: "file", accept: "application/json,.json", hidden: true });
  chooser.addEventListener("change", async () => {
    const [file] = chooser.files;
    chooser.value = "";
    const chats = readArchive(await file.text());
    if (!chats) {
      warn(say("archive.wrong", { name: file.name }));
      return;
    }
    await session.importAll(chats);
    announce(say("archive.imported", { count: chats.length }));
  });
  const save = async () => saveAs("chats.json", JSON.stringify(await session.archive(), null, 2));
  return make("div", { class: "row archive" }, chooser,
    make("button", { type: "button", class: "link", text: "archive.take", on: { click: () => chooser.click() } }),
    make("button", { type: "button", class: "link", text: "archive.save", on: { click: save } }));
}
