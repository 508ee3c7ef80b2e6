/** Reads what Prometheus scrapes (https://prometheus.io/docs/instrumenting/exposition_formats/). */

const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/**
 * One number of the server.
 *
 * @typedef {Object} Sample
 * @property {Object<string, string>} labels
 * @property {number} value
 */

/**
 * Reads the text of `/metrics`.
 *
 * @param {string} text
 * @returns {Map<string, Sample[]>} samples by name.
 */
export function parseExposition(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line[0] === "#" ? null : SAMPLE.exec(line);
    if (!found) continue;
    const [, name, labels, value] = found;
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels: labels ? readLabels(labels) : {}, value: readNumber(value) });
  }
  return samples;
}

function readLabels(text) {
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\./g, (escape) => ESCAPES[escape] ?? escape)]));
}

function readNumber(text) {
  return { "+Inf": Infinity, "-Inf": -Infinity }[text] ?? Number(text);
}
