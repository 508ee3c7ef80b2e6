/** Reads what the server says of its models. */

const OTHERS = ["embedding", "rerank", "transcription", "image", "speech"];

/** Returns whether a model transcribes speech. */
export function transcribes({ capabilities = [] }) {
  return capabilities.includes("transcription");
}

/** Returns whether a model speaks texts. */
export function speaks({ capabilities = [] }) {
  return capabilities.includes("speech");
}

/** Returns whether a model makes images. */
export function makesImages({ capabilities = [] }) {
  return capabilities.includes("image");
}

/** Returns whether a model does other work than to chat. */
export function encodes({ capabilities = [] }) {
  return capabilities.some((one) => OTHERS.includes(one));
}

/** Returns "loaded", "loading", "unloading", "unloaded" or "failed". */
export function stateOf({ status = {} } = {}) {
  return status.failed ? "failed" : status.value ?? "loaded";
}
