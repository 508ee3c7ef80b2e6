/** Records what the user says, and has a model of speech transcribe it. */

import { iconButton, warn } from "../core/dom.js";
import { put } from "../core/language.js";
import { askForm } from "../core/server.js";

export class Dictation {
  /** @param {function(string): void} onText is told each transcript. */
  constructor(onText) {
    this.#onText = onText;
    this.button = iconButton("microphone", "chat.dictate", () => this.#toggle(), { hidden: true });
  }

  #onText;
  #model;
  #recorder = null;

  /** @param {string} [model] the id of the model that transcribes; undefined = there is none. */
  enable(model) {
    this.#model = model;
    // Browsers give the microphone only to pages of this machine, or over HTTPS.
    this.button.hidden = !model || !navigator.mediaDevices || !globalThis.MediaRecorder;
  }

  async #toggle() {
    if (this.#recorder) {
      this.#recorder.stop();
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      warn(error.message); // such as a permission that the user denies
      return;
    }
    const pieces = [];
    this.#recorder = new MediaRecorder(stream);
    this.#recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    this.#recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop();
      this.#recorder = null;
      this.#show(false);
      this.#transcribe(new Blob(pieces));
    });
    this.#recorder.start();
    this.#show(true);
  }

  async #transcribe(recording) {
    const form = new FormData();
    form.append("model", this.#model);
    form.append("file", recording, "speech");
    this.button.disabled = true;
    try {
      this.#onText((await askForm("v1/audio/transcriptions", form)).text);
    } finally {
      this.button.disabled = false;
    }
  }

  #show(isRecording) {
    this.button.setAttribute("aria-pressed", isRecording);
    const label = isRecording ? "chat.dictate-end" : "chat.dictate";
    for (const name of ["aria-label", "title"]) put(this.button, name, label);
  }
}
