/** Follows an answer to its end, over lost connections and restarts of the server. */

import { ServerError, askEvents } from "../core/server.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

/**
 * Yields the events of a response that runs in the background, each once.
 *
 * @param {string} id
 * @param {Object|null} body the request that starts it; null = it is there.
 * @param {function(boolean): void} onTrouble is told when the connection is lost and found.
 * @returns {AsyncGenerator<Object>}
 * @throws {ServerError} the server has refused it, or no longer knows it.
 */
export async function* answerEvents(id, body, onTrouble) {
  let next = 0;
  let pause = FIRST_PAUSE;
  let isLost = false;
  let events = body ? askEvents("POST", "v1/responses", body) : askEvents("GET", followed(id, next));
  for (;;) {
    try {
      for await (const event of events) {
        if (isLost) onTrouble(isLost = false);
        pause = FIRST_PAUSE;
        next = event.sequence_number + 1;
        yield event;
      }
      return;
    } catch (error) {
      // 503: the server is there again, and loads its models.
      const mayReturn = error instanceof ServerError && (error.status === 0 || (error.status === 503 && (isLost || !body)));
      if (!mayReturn) {
        if (isLost) onTrouble(false);
        throw error;
      }
    }
    if (!isLost) onTrouble(isLost = true);
    await elapsed(pause);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
    events = askEvents("GET", followed(id, next));
  }
}

function followed(id, next) {
  return `v1/responses/${id}?stream=true${next ? `&starting_after=${next - 1}` : ""}`;
}

/** Resolves after some milliseconds, or when the machine is on a network again. */
function elapsed(milliseconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    addEventListener("online", resolve, { once: true });
  });
}
