/** Reads what the server says of its models. */

const ENCODING = ["embedding", "rerank"];

/** Returns whether a model encodes texts, and writes none. */
export function encodes({ capabilities = [] }) {
  return capabilities.some((one) => ENCODING.includes(one));
}

/** Returns "loaded", "loading", "unloading", "unloaded" or "failed". */
export function stateOf({ status = {} } = {}) {
  return status.failed ? "failed" : status.value ?? "loaded";
}
