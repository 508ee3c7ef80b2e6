/** Writes all chats down in one file, and makes chats of such a file. */

const FORM = "fastovms.chats";

/**
 * Returns all chats, the oldest first, as the file has them.
 *
 * @param {Object} store that keeps chats.
 * @param {import("./branches.js").Chat[]} chats
 */
export async function archiveOf(store, chats) {
  const oldest = [...chats].sort((one, other) => (one.created_at ?? 0) - (other.created_at ?? 0));
  const written = [];
  for (const { id, created_at, metadata: { answer, ...metadata } } of oldest) {
    written.push({ id, created_at, metadata, items: await store.items(id) });
  }
  return { form: FORM, version: 1, chats: written };
}

/**
 * Reads a file of all chats, or of one, as the export of a chat writes it.
 *
 * @param {string} text
 * @returns {Object[]|null} the chats, each with `id`, `metadata` and `items`; null = it is no such file.
 */
export function readArchive(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    return null;
  }
  const chats = file?.form === FORM ? file.chats : [{ id: file?.id, metadata: { title: file?.title ?? "" }, items: file?.items }];
  const isChat = (chat) => isRecord(chat) && isRecord(chat.metadata) && Array.isArray(chat.items) && chat.items.every(isRecord);
  return Array.isArray(chats) && chats.every(isChat) ? chats : null;
}

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * Makes chats of those of a file, with their branches, and yields each.
 *
 * @param {Object} store that keeps chats.
 * @param {Object[]} chats parents before their branches.
 * @returns {AsyncGenerator<import("./branches.js").Chat>} the new chats.
 * @throws {import("../core/server.js").ServerError} the server has refused a chat.
 */
export async function* importChats(store, chats) {
  const made = new Map();
  for (const { id, metadata, items } of chats) {
    const { parent, at, ...rest } = metadata;
    const branch = made.has(parent) ? { parent: made.get(parent).id, at } : {};
    // Items get ids of their own: those of the file may be in use.
    const fresh = items.map(({ id: _, ...item }) => item);
    const chat = await store.create({ ...rest, ...branch }, fresh);
    if (id) made.set(id, chat);
    yield chat;
  }
}
