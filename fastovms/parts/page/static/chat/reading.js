/** Reads answers aloud with a model that speaks, one at a time. */

import { showMarkdown } from "../answer/markdown.js";
import { elapsed, iconButton, make, warn } from "../core/dom.js";
import { put, say } from "../core/language.js";
import { askBytes } from "../core/server.js";

/** Characters of a request: a little less than the server's limit, since a part ends with its last word. */
const PART = /[^]{1,4000}(?:[\s。！？]|$)|[^]{1,4000}/g;
const HAS_WORDS = /[\p{L}\p{N}]/u;

/** Seconds of audio that are kept ahead of the loudspeaker: the server speaks no faster than it is heard. */
const AHEAD = 20;

const HEAD_SIZE = 44;
const RATE_AT = 24;

export class Reading {
  /** @param {string} [model] the id of the model that speaks; undefined = there is none. */
  constructor(model) {
    this.#model = model;
  }

  #model;
  /** The button of the answer that is read, and what ends it. */
  #current = null;

  /**
   * Returns a button that reads a text aloud, or stops it; null = no model speaks.
   *
   * @param {string} text in Markdown.
   */
  button(text) {
    if (!this.#model || !HAS_WORDS.test(text)) return null;
    const button = iconButton("speaker", "chat.read", async () => {
      const isThis = this.#current?.button === button;
      this.stop();
      if (!isThis) await this.#read(button, text);
    }, { "aria-pressed": "false" });
    return button;
  }

  /** Stops if the answer that is read is no longer shown. */
  stopIfGone() {
    if (this.#current && !this.#current.button.isConnected) this.stop();
  }

  stop() {
    this.#current?.ending.abort();
    this.#current = null;
  }

  async #read(button, text) {
    const current = this.#current = { button, ending: new AbortController() };
    const { signal } = current.ending;
    showState(button, true);
    signal.addEventListener("abort", () => showState(button, false));
    const player = new Player(signal);
    try {
      const parts = (spokenText(text).match(PART) ?? []).filter((part) => HAS_WORDS.test(part));
      if (!parts.length) warn(say("chat.nothing-to-read"));
      for (const input of parts) {
        const body = { model: this.#model, input, response_format: "wav", stream_format: "audio" };
        await player.play(askBytes("v1/audio/speech", body, signal));
      }
      await player.ended();
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      player.close();
      if (this.#current === current) this.stop();
    }
  }
}

function showState(button, isReading) {
  button.setAttribute("aria-pressed", isReading);
  for (const name of ["aria-label", "title"]) put(button, name, isReading ? "chat.read-end" : "chat.read");
}

/** Returns what is said of a text in Markdown: all but its marks and its code. */
function spokenText(text) {
  const node = make("div", { class: "off-screen" });
  document.body.append(node);
  showMarkdown(node, text);
  for (const code of node.querySelectorAll(".code-block")) code.remove();
  const spoken = node.innerText;
  node.remove();
  return spoken;
}

/** Plays WAV files of 16 bits and one channel while they come. */
class Player {
  /** @param {AbortSignal} signal ends the sound at once. */
  constructor(signal) {
    this.#signal = signal;
    signal.addEventListener("abort", () => this.close());
  }

  #signal;
  #context = new AudioContext();
  /** When the sound that was scheduled ends, by the clock of the context. */
  #end = 0;

  /** @param {AsyncIterable<Uint8Array>} file */
  async play(file) {
    let rest = new Uint8Array();
    let rate = 0;
    for await (const value of file) {
      const bytes = new Uint8Array([...rest, ...value]);
      const head = rate ? 0 : HEAD_SIZE;
      if (bytes.length >= head + 2) {
        rate ||= new DataView(bytes.buffer).getUint32(RATE_AT, true);
        const size = (bytes.length - head) & ~1;
        this.#schedule(new DataView(bytes.buffer, head, size), rate);
        rest = bytes.subarray(head + size);
      } else rest = bytes;
      await this.#until(AHEAD);
    }
  }

  /** Resolves when all of the sound was heard. */
  ended() {
    return this.#until(0);
  }

  close() {
    if (this.#context.state !== "closed") this.#context.close();
  }

  #schedule(samples, rate) {
    const buffer = this.#context.createBuffer(1, samples.byteLength / 2, rate);
    const channel = buffer.getChannelData(0);
    for (let at = 0; at < channel.length; at++) channel[at] = samples.getInt16(2 * at, true) / 32768;
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    this.#end = Math.max(this.#end, this.#context.currentTime);
    source.start(this.#end);
    this.#end += buffer.duration;
  }

  /** Waits until at most so many seconds of sound are left. */
  async #until(seconds) {
    for (let left; (left = this.#end - this.#context.currentTime - seconds) > 0;) {
      this.#signal.throwIfAborted();
      await elapsed(1000 * left);
    }
    this.#signal.throwIfAborted();
  }
}
