/** Asks the server that this page came from. */

import { apiKey, askForKey } from "./api_key.js";
import { readEvents } from "./event_stream.js";

/** The server's root, wherever a proxy has it: this file lies in `ui/VERSION/core/`. */
export const ROOT = new URL("../../../", import.meta.url);

/** What the server has refused, or that it could not be reached (status 0). */
export class ServerError extends Error {
  /**
   * @param {number} status
   * @param {string} message in the server's words.
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Asks, and returns what is answered as JSON.
 *
 * @param {string} method
 * @param {string} path below the root, such as "v1/models".
 * @param {Object} [body]
 * @returns {Promise<Object>}
 * @throws {ServerError}
 */
export async function ask(method, path, body) {
  return (await send(method, path, body)).json();
}

/**
 * Sends a form, and returns what is answered as JSON.
 *
 * @param {string} path
 * @param {FormData} form
 * @throws {ServerError}
 */
export async function askForm(path, form) {
  return (await send("POST", path, form)).json();
}

/**
 * Asks for a text.
 *
 * @param {string} path
 * @param {Object<string, string>} [fields] of the request's head.
 * @throws {ServerError}
 */
export async function askText(path, fields) {
  return (await send("GET", path, undefined, undefined, fields)).text();
}

/**
 * Asks for bytes, and yields them as they come.
 *
 * @param {string} path
 * @param {Object} body
 * @param {AbortSignal} signal ends it.
 * @returns {AsyncGenerator<Uint8Array>}
 * @throws {ServerError} the request was refused, or the answer broke off: then with status 0.
 */
export async function* askBytes(path, body, signal) {
  const reader = (await send("POST", path, body, signal)).body.getReader();
  try {
    for (let piece; !(piece = await reader.read()).done;) yield piece.value;
  } catch (error) {
    throw unreachable(error);
  } finally {
    reader.cancel().catch(() => {}); // whoever reads no further leaves
  }
}

/**
 * Asks for a stream, and yields its events, each parsed.
 *
 * @param {string} method
 * @param {string} path
 * @param {Object} [body]
 * @param {AbortSignal} [signal] ends it.
 * @returns {AsyncGenerator<Object>}
 * @throws {ServerError} the stream was refused, or broke off: then with status 0.
 */
export async function* askEvents(method, path, body, signal) {
  const answer = await send(method, path, body, signal);
  try {
    yield* readEvents(answer.body);
  } catch (error) {
    throw unreachable(error);
  }
}

async function send(method, path, body, signal, fields = {}) {
  for (;;) {
    const key = apiKey();
    const headers = { ...fields };
    if (key) headers.Authorization = `Bearer ${key}`;
    const isForm = body instanceof FormData; // which brings its own type
    if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(new URL(path, ROOT), { method, headers, signal, body: body === undefined || isForm ? body : JSON.stringify(body) });
    } catch (error) {
      throw unreachable(error);
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw new ServerError(answer.status, await reason(answer));
    await askForKey(key);
  }
}

/** Keeps an abort as it is: that is what was wanted. */
function unreachable(error) {
  return error.name === "AbortError" ? error : new ServerError(0, error.message);
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    return typeof error === "string" ? error : error.message;
  } catch {
    return answer.statusText || String(answer.status);
  }
}
