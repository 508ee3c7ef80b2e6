// The AI SDK and OpenAI's client for JavaScript against a server whose URL is the one argument.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const name = "demo_model";
const prompt = "What is the weather in Paris?";
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ baseURL, name: "local", includeUsage: true });
const models = {
  "openai, chats": openai.chat(name),
  "openai, responses": openai.responses(name),
  "openai-compatible": compatible(name),
};
const weather = tool({
  description: "Get the current weather in a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async () => ({ temperature: 18, condition: "sunny" }),
});

for (const [title, model] of Object.entries(models)) {
  const options = { model, prompt, temperature: 0, maxRetries: 0, tools: { get_weather: weather } };
  const whole = await generateText({ ...options, stopWhen: stepCountIs(3) });
  assert.match(whole.text, /18/, title);
  assert.deepEqual(whole.steps[0].toolCalls[0].input, { city: "Paris" }, title);

  const streamed = streamText({ ...options, stopWhen: stepCountIs(3) });
  for await (const part of streamed.fullStream) {
    assert.notEqual(part.type, "error", `${title}: ${JSON.stringify(part.error?.message)}`);
  }
  const steps = await streamed.steps;
  assert.match(await streamed.text, /18/, title);
  // An answer that only calls has no text, not even an empty one.
  assert.deepEqual(steps[0].content.map((part) => part.type), ["tool-call", "tool-result"], title);
  assert.ok(steps[0].usage.outputTokens > 0, title);
  console.log("ok:", title);
}

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const day = { name: "day", format: { type: "grammar", syntax: "regex", definition: "[0-9]{4}" } };
const response = await client.responses.create({
  model: name,
  input: prompt,
  tools: [{ type: "custom", ...day }],
  tool_choice: "required",
});
assert.equal(response.output[0].type, "custom_tool_call");
assert.match(response.output[0].input, /^[0-9]{4}$/);
const compacted = await client.responses.compact({ model: name, input: prompt });
assert.deepEqual(compacted.output.map((item) => item.type), ["message", "compaction"]);
console.log("ok: openai for JavaScript");
