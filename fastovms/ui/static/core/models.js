/** Tells the models apart that the server lists. */

const OTHERS = ["embedding", "rerank", "transcription"];

/** Returns whether a model transcribes speech. */
export function transcribes({ capabilities = [] }) {
  return capabilities.includes("transcription");
}

/** Returns whether a model encodes texts or transcribes speech, and does not chat. */
export function encodes({ capabilities = [] }) {
  return capabilities.some((one) => OTHERS.includes(one));
}
