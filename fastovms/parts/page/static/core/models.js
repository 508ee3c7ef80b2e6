/** Reads what the server says of its models. */

const OTHERS = ["embedding", "rerank", "transcription"];

/** Returns whether a model transcribes speech. */
export function transcribes({ capabilities = [] }) {
  return capabilities.includes("transcription");
}

/** Returns whether a model encodes texts or transcribes speech, and does not chat. */
export function encodes({ capabilities = [] }) {
  return capabilities.some((one) => OTHERS.includes(one));
}

/** Returns "loaded", "loading", "unloading", "unloaded" or "failed". */
export function stateOf({ status = {} } = {}) {
  return status.failed ? "failed" : status.value ?? "loaded";
}
