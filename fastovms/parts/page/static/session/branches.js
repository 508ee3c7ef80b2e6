/**
 * Knows which chats are branches of one another.
 *
 * A conversation of the API is one line of items. Whoever edits a message, or asks for another answer,
 * begins a new conversation with the items before that message; its metadata has `parent`, the
 * conversation that it departs from, and `at`, the number of items that both begin with. A branch
 * departs from the conversation where the message first stood that it replaces, so that `at` grows
 * from parent to child, and the variants of a message are its conversation and that one's children
 * with the same `at`.
 */

/**
 * @typedef {Object} Chat
 * @property {string} id
 * @property {{parent?: string, at?: string, title?: string, answer?: string}} metadata
 */

/**
 * Returns where a branch departs that replaces the message at a position.
 *
 * @param {Map<string, Chat>} chats all that are known, by id.
 * @param {Chat} chat the one that is shown.
 * @param {number} at the message's position among its items.
 * @returns {{parent: string, at: string}} metadata of the branch.
 */
export function departure(chats, chat, at) {
  return { parent: ownerOf(chats, chat, at).id, at: String(at) };
}

/**
 * Returns the variants of the message at a position: the chats that differ from there on.
 *
 * @param {Map<string, Chat>} chats
 * @param {Chat} chat the one that is shown.
 * @param {number} at
 * @returns {{ids: string[], current: number}} the oldest first, and the place of the one shown.
 */
export function variantsAt(chats, chat, at) {
  const owner = ownerOf(chats, chat, at);
  const ids = [owner.id];
  for (const other of chats.values()) {
    if (other.metadata.parent === owner.id && Number(other.metadata.at) === at) ids.push(other.id);
  }
  const line = lineOf(chats, chat).map((one) => one.id);
  const current = ids.slice(1).findIndex((id) => line.includes(id)) + 1;
  return { ids, current };
}

/**
 * Returns the chat that all branches of a family go back to.
 *
 * @param {Map<string, Chat>} chats
 * @param {Chat} chat
 */
export function rootOf(chats, chat) {
  return lineOf(chats, chat).at(-1);
}

/** Returns a chat, the one that it departs from, and so on. */
function lineOf(chats, chat) {
  const line = [chat];
  for (let next = parentOf(chats, chat); next && !line.includes(next); next = parentOf(chats, next)) line.push(next);
  return line;
}

function parentOf(chats, chat) {
  return chats.get(chat.metadata.parent);
}

/** Returns the chat of a line in which the item at a position is not yet that of a branch. */
function ownerOf(chats, chat, at) {
  return lineOf(chats, chat).find((one) => !parentOf(chats, one) || Number(one.metadata.at) < at);
}
