/** Tells the models apart that the server lists. */

const ENCODING = ["embedding", "rerank"];

/** Returns whether a model encodes texts, and writes none. */
export function encodes({ capabilities = [] }) {
  return capabilities.some((one) => ENCODING.includes(one));
}
