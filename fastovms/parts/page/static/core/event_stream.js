/** Reads event streams (https://html.spec.whatwg.org/multipage/server-sent-events.html). */

/**
 * Yields the data of each event, parsed as JSON, up to `[DONE]`.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<Object>}
 * @throws {Error} the stream ended before `[DONE]`.
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let isWhole = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done && isWhole) return;
      if (done) throw new Error("the connection ended within an answer");
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const data of frames.map(dataOf)) {
        if (data === "[DONE]") isWhole = true;
        else if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever reads no further leaves
  }
}

/** Returns what is behind the `data:` lines of a frame; "" = it has none, such as a comment. */
function dataOf(frame) {
  return frame.split("\n").filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).trimStart()).join("\n");
}
