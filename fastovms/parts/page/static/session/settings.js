/** Keeps what the user has set for answers, and makes requests of it. */

import { device } from "../core/storage.js";

const KEPT_AS = "fastovms.settings";

/**
 * What is set for answers; "" = the server's default.
 *
 * @typedef {Object} Settings
 * @property {string} model
 * @property {string} instructions the system prompt.
 * @property {string} temperature
 * @property {string} maxTokens of an answer.
 * @property {string} topP
 * @property {string} topK
 * @property {string} minP
 * @property {string} repetitionPenalty
 * @property {string} frequencyPenalty
 * @property {string} presencePenalty
 * @property {number|null} contextLength tokens of the model's context; null = not known.
 * @property {string} seed
 * @property {string} effort of reasoning.
 * @property {string} schema a JSON schema that the answer follows.
 * @property {string} tools a list of functions, as JSON.
 * @property {boolean} logprobs whether the answer tells of its tokens.
 */

/** @type {Settings} */
const DEFAULTS = {
  model: "", contextLength: null, instructions: "", temperature: "", maxTokens: "", topP: "", topK: "", minP: "",
  repetitionPenalty: "", frequencyPenalty: "", presencePenalty: "", seed: "", effort: "", schema: "", tools: "", logprobs: false,
};

const NUM_ALTERNATIVES = 5;

/** The most tokens of an answer where nothing is set, as far as half of the context holds them. */
const DEFAULT_MAX_TOKENS = 4096;

/** The fields of requests that are numbers, by the names that settings have. */
const NUMBERS = {
  temperature: "temperature", topP: "top_p", topK: "top_k", minP: "min_p", repetitionPenalty: "repetition_penalty",
  frequencyPenalty: "frequency_penalty", presencePenalty: "presence_penalty", seed: "seed",
};

/**
 * Returns how many tokens an answer may have where nothing is set; null = the server's default, since
 * the context's length is not known.
 *
 * @param {Settings} settings
 */
export function defaultMaxTokens({ contextLength }) {
  return contextLength && Math.max(1, Math.min(DEFAULT_MAX_TOKENS, Math.floor(contextLength / 2)));
}

/** Returns the name by which settings are kept. */
const keptAs = (place) => (place ? `${KEPT_AS}.${place}` : KEPT_AS);

/** Returns whether settings are kept for a place. */
export function hasSettings(place) {
  return device.get(keptAs(place)) !== null;
}

/**
 * Returns the settings that are kept for a place, or those of the chat.
 *
 * @param {string} [place] "" = those of the chat.
 * @returns {Settings}
 */
export function readSettings(place = "") {
  try {
    return { ...DEFAULTS, ...JSON.parse(device.get(keptAs(place)) ?? device.get(KEPT_AS) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

/**
 * @param {Settings} settings
 * @param {string} [place]
 */
export function keepSettings(settings, place = "") {
  device.set(keptAs(place), JSON.stringify(settings));
}

/**
 * Returns the settings with what a chat's last response says of its own, so that a chat goes on with
 * the system prompt and the tools that it began with, on whatever device.
 *
 * @param {Settings} settings
 * @param {Object|null} response
 */
export function withThoseOf(settings, response) {
  if (!response) return settings;
  const { format } = response.text ?? {};
  return {
    ...settings,
    model: response.model,
    instructions: response.instructions ?? "",
    effort: response.reasoning?.effort ?? "",
    schema: format?.type === "json_schema" ? JSON.stringify(format.schema, null, 2) : "",
    tools: response.tools?.length ? JSON.stringify(response.tools, null, 2) : "",
  };
}

/**
 * Reads a text that must be JSON of a kind.
 *
 * @param {string} text
 * @param {"object"|"list"} kind
 * @returns {Object|Array|null} null = it is no such JSON.
 */
export function parseAs(text, kind) {
  try {
    const value = JSON.parse(text);
    const fits = kind === "list" ? Array.isArray(value) : value !== null && typeof value === "object" && !Array.isArray(value);
    return fits ? value : null;
  } catch {
    return null;
  }
}

/**
 * Returns the body of `POST /v1/responses`, without what says where it is kept.
 *
 * @param {Settings} settings whose JSON has been checked.
 * @param {Object[]} input items.
 */
export function requestBody(settings, input) {
  const body = { model: settings.model, input };
  if (settings.instructions) body.instructions = settings.instructions;
  for (const [name, field] of Object.entries(NUMBERS)) if (settings[name] !== "") body[field] = Number(settings[name]);
  const maxTokens = Number(settings.maxTokens) || defaultMaxTokens(settings);
  if (maxTokens) body.max_output_tokens = maxTokens;
  if (settings.effort) body.reasoning = { effort: settings.effort };
  if (settings.schema.trim()) {
    body.text = { format: { type: "json_schema", name: "answer", strict: true, schema: parseAs(settings.schema, "object") } };
  }
  if (settings.tools.trim()) body.tools = parseAs(settings.tools, "list").map(asResponsesTool);
  if (settings.logprobs) {
    body.include = ["message.output_text.logprobs"];
    body.top_logprobs = NUM_ALTERNATIVES;
  }
  return body;
}

/** Returns a request for a response that reports its duration. */
export function withMetrics(body) {
  return { ...body, include: [...(body.include ?? []), "metrics"] };
}

/** Returns a tool in the form of the Responses API, which many have in that of chats. */
function asResponsesTool(tool) {
  return tool?.type === "function" && tool.function ? { type: "function", ...tool.function } : tool;
}
