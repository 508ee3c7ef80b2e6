/** Writes a chat down for elsewhere: as JSON, and as the request that continues it in curl, Python or JavaScript. */

import { bare } from "../session/items.js";

/** Fields that OpenAI's client has no parameters for. */
const FURTHER = ["seed", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"];

/**
 * Returns the whole chat.
 *
 * @param {Object|null} chat
 * @param {Object[]} items
 * @param {Object} request what `requestBody` makes of the settings.
 */
export function asJson(chat, items, request) {
  const { input, ...settings } = request;
  return JSON.stringify({ id: chat?.id ?? null, title: chat?.metadata.title ?? "", settings, items }, null, 2);
}

/**
 * Returns a command that asks the same again.
 *
 * @param {string} root the server's.
 * @param {Object} request
 * @param {boolean} needsKey
 */
export function asCurl(root, request, needsKey) {
  const body = JSON.stringify(withBareInput(request), null, 2).replaceAll("'", `'\\''`);
  const key = needsKey ? ` \\\n  -H "Authorization: Bearer $API_KEY"` : "";
  return `curl ${root}v1/responses${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}

/**
 * Returns a program that asks the same again with OpenAI's client.
 *
 * @param {string} root
 * @param {Object} request
 * @param {boolean} needsKey
 */
export function asPython(root, request, needsKey) {
  const fields = Object.entries(withBareInput(request));
  const given = fields.filter(([name]) => !FURTHER.includes(name)).map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  const further = fields.filter(([name]) => FURTHER.includes(name)).map(([name, value]) => `"${name}": ${value}`);
  if (further.length) given.push(`    extra_body={${further.join(", ")}},`);
  const key = needsKey ? `os.environ["API_KEY"]` : `"unused"`;
  return [
    ...(needsKey ? ["import os", ""] : []), "from openai import OpenAI", "",
    `client = OpenAI(base_url="${root}v1", api_key=${key})`,
    "response = client.responses.create(", ...given, ")", "print(response.output_text)", "",
  ].join("\n");
}

/**
 * Returns a module that asks the same again with OpenAI's client.
 *
 * @param {string} root
 * @param {Object} request
 * @param {boolean} needsKey
 */
export function asJavaScript(root, request, needsKey) {
  const key = needsKey ? "process.env.API_KEY" : `"unused"`;
  return [
    `import OpenAI from "openai";`, "",
    `const client = new OpenAI({ baseURL: "${root}v1", apiKey: ${key} });`,
    `const response = await client.responses.create(${JSON.stringify(withBareInput(request), null, 2)});`,
    "console.log(response.output_text);", "",
  ].join("\n");
}

function withBareInput(request) {
  return { ...request, input: request.input.map(bare) };
}

/** Writes a value of JSON as Python does. */
function python(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((one) => python(one, inner))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one, inner)}`);
  const [begin, end] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${begin}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${end}` : begin + end;
}
