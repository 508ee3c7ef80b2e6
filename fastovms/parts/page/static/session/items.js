/** Reads and makes the items of a conversation, in the Responses API's form. */

/** How many random bytes an id has: enough that two never meet. */
const ID_BYTES = 16;

/** @returns {string} an id for a response that is about to be asked for. */
export function newResponseId() {
  // Not crypto.randomUUID, which plain HTTP from another machine has not.
  const bytes = crypto.getRandomValues(new Uint8Array(ID_BYTES));
  return `resp_${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * A file of a message: a text, or a PDF.
 *
 * @typedef {Object} AttachedFile
 * @property {string} name
 * @property {string} [text]
 * @property {string} [data] a PDF as a data URL.
 */

/** What a part of a message looks like that is a text file. */
const FILE = /^<file name="([^"\n]*)">\n([^]*)\n<\/file>\n*$/;

/**
 * Makes a message of the user.
 *
 * @param {string} text
 * @param {string[]} images as data URLs.
 * @param {AttachedFile[]} files which the model reads as texts.
 */
export function userMessage(text, images, files = []) {
  const parts = images.map((url) => ({ type: "input_image", image_url: url, detail: "auto" }));
  for (const file of files) {
    const name = file.name.replace(/["\n]/g, "_");
    if (file.data) parts.push({ type: "input_file", filename: name, file_data: file.data });
    else parts.push({ type: "input_text", text: `<file name="${name}">\n${file.text}\n</file>\n\n` });
  }
  if (text || !parts.length) parts.push({ type: "input_text", text });
  return { type: "message", role: "user", content: parts };
}

/**
 * Makes the output of a call, which the user gives by hand.
 *
 * @param {Object} call
 * @param {string} output
 */
export function callOutput(call, output) {
  return { type: `${call.type}_output`, call_id: call.call_id, output };
}

/** @param {Object} item */
export const isUserMessage = (item) => item.type === "message" && item.role === "user";

/** @param {Object} item */
export const isCall = (item) => item.type === "function_call" || item.type === "custom_tool_call";

/** @param {Object} item */
export const isCallOutput = (item) => item.type === "function_call_output" || item.type === "custom_tool_call_output";

/** @param {Object} item */
const isAnswer = (item) => item?.type === "message" && item.role === "assistant";

/**
 * Returns why an answer was cut: "limit" = it had all the tokens that it may have, "stopped" = by
 * the user, "" = it was not, or it has not ended.
 *
 * @param {Object[]} items of the answer.
 */
export function cutOf(items) {
  const { type, status } = items.at(-1) ?? {};
  if (isCallOutput({ type })) return "";
  return { incomplete: "limit", in_progress: "stopped" }[status] ?? "";
}

/**
 * Returns whether the model can continue an answer: it goes on with an unfinished text alone.
 *
 * @param {Object[]} items of the answer.
 */
export function canContinue(items) {
  return isAnswer(items.at(-1)) && cutOf(items) !== "";
}

/**
 * Marks the items of a stopped answer. The status of the last one says that the answer was stopped
 * and not cut by its limit; the server continues both.
 *
 * @param {Object[]} items
 */
export function stopped(items) {
  return items.map((item, index) => (index === items.length - 1 ? { ...item, status: "in_progress" } : item));
}

/**
 * Returns the items of an answer, each text that continues a text that was cut as one with it.
 *
 * @param {Object[]} items
 */
export function joined(items) {
  const whole = [];
  for (const item of items) {
    const last = whole.at(-1);
    const continues = isAnswer(item) && isAnswer(last) && last.status !== "completed" && Array.isArray(last.content);
    if (continues && Array.isArray(item.content)) whole.splice(-1, 1, { ...item, content: [...last.content, ...item.content] });
    else whole.push(item);
  }
  return whole;
}

/**
 * Returns the text of a message or of reasoning.
 *
 * @param {Object} item
 */
export function textOf(item) {
  if (typeof item.content === "string") return item.content;
  return [...(item.summary ?? []), ...(item.content ?? [])].map((part) => part.text ?? part.refusal ?? "").join("");
}

/** Returns the parts of a message; a text alone is no list of parts. */
const partsOf = ({ content }) => (Array.isArray(content) ? content : []);

const isFile = (part) => part.type === "input_file" || FILE.test(part.text ?? "");

/**
 * Returns the files of a message.
 *
 * @param {Object} item
 * @returns {AttachedFile[]}
 */
export function filesOf(item) {
  return partsOf(item).filter(isFile).map((part) => {
    if (part.type === "input_file") return { name: part.filename ?? part.file_id ?? part.file_url ?? "", data: part.file_data };
    const [, name, text] = FILE.exec(part.text);
    return { name, text };
  });
}

/**
 * Returns the text of a message without its files.
 *
 * @param {Object} item
 */
export function ownTextOf(item) {
  if (typeof item.content === "string") return item.content;
  return textOf({ content: partsOf(item).filter((part) => !isFile(part)) });
}

/**
 * Returns a message of the user with another text, and with the images and files that it has.
 *
 * @param {Object} item
 * @param {string} text
 */
export function withOwnText(item, text) {
  const kept = partsOf(item).filter((part) => part.type === "input_image" || isFile(part));
  return { type: "message", role: "user", content: [...kept, { type: "input_text", text }] };
}

/**
 * Returns the URLs of a message's images.
 *
 * @param {Object} item
 * @returns {string[]}
 */
export function imagesOf(item) {
  if (typeof item.content === "string") return [];
  return (item.content ?? []).map((part) => part.image_url).filter((url) => typeof url === "string");
}

/**
 * Returns whether an item says anything: the beginning of one that was cut may not.
 *
 * @param {Object} item
 */
export function saysAnything(item) {
  return isCall(item) || isCallOutput(item) || textOf(item) !== "" || imagesOf(item).length > 0;
}

/**
 * Returns an item as a request brings it: without what the server adds.
 *
 * @param {Object} item
 */
export function bare({ id, status, ...item }) {
  if (!Array.isArray(item.content)) return item;
  return { ...item, content: item.content.map(({ annotations, logprobs, ...part }) => part) };
}

/**
 * Yields runs of items that are shown together: a message of the user, or all up to the next.
 *
 * @param {Object[]} items
 * @param {number} first the position of the first one in the chat.
 */
export function* groups(items, first) {
  let start = 0;
  let question = null;
  while (start < items.length) {
    const isUser = isUserMessage(items[start]);
    let end = start + 1;
    while (!isUser && end < items.length && !isUserMessage(items[end])) end++;
    if (isUser) question = first + start;
    yield { isUser, items: items.slice(start, end), start: first + start, end: first + end, question };
    start = end;
  }
}

/** Returns the position of the last message of the user that stands no later than a position; -1 = there is none. */
export function lastQuestion(items, position) {
  return items.slice(0, position + 1).findLastIndex(isUserMessage);
}
