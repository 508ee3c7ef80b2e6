/** Keeps what the user has set for answers, and makes requests of it. */

const KEPT_AS = "fastovms.settings";

/**
 * What is set for answers; "" = the server's default.
 *
 * @typedef {Object} Settings
 * @property {string} model
 * @property {string} instructions the system prompt.
 * @property {string} temperature
 * @property {string} maxTokens
 * @property {string} seed
 * @property {string} effort of reasoning.
 * @property {string} schema a JSON schema that the answer follows.
 * @property {string} tools a list of functions, as JSON.
 * @property {boolean} logprobs whether the answer tells of its tokens.
 */

/** @type {Settings} */
const DEFAULTS = {
  model: "", instructions: "", temperature: "", maxTokens: "", seed: "", effort: "", schema: "", tools: "", logprobs: false,
};

const NUM_ALTERNATIVES = 5;

/** @returns {Settings} */
export function readSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEPT_AS) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

/** @param {Settings} settings */
export function keepSettings(settings) {
  localStorage.setItem(KEPT_AS, JSON.stringify(settings));
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
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_output_tokens = Number(settings.maxTokens);
  if (settings.seed !== "") body.seed = Number(settings.seed);
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

/** Returns a tool in the form of the Responses API, which many have in that of chats. */
function asResponsesTool(tool) {
  return tool?.type === "function" && tool.function ? { type: "function", ...tool.function } : tool;
}
