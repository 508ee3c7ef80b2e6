// The AI SDK, and the clients of OpenAI, Anthropic and Ollama for JavaScript, against a server whose URL is the one argument.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
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
const messages = [{ role: "user", content: prompt }];
const settings = { model: name, messages, temperature: 0 };
const chat = await client.chat.completions.create(settings);
const chunks = [];
const asked = { ...settings, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(asked)) chunks.push(chunk);
const pieces = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "");
assert.equal(pieces.join(""), chat.choices[0].message.content);
assert.equal(chunks.at(-1).usage.completion_tokens, chat.usage.completion_tokens);
const collected = await client.chat.completions.stream(settings).finalContent();
assert.equal(collected, chat.choices[0].message.content);

const Person = z.object({ name: z.string(), age: z.int() });
const parsed = await client.chat.completions.parse({
  ...settings,
  messages: [{ role: "user", content: "Anna is 31 years old. Answer as JSON." }],
  response_format: zodResponseFormat(Person, "person"),
});
assert.ok(Person.safeParse(parsed.choices[0].message.parsed).success);
const runner = client.chat.completions.runTools({
  ...settings,
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "Get the current weather in a city",
        parameters: z.toJSONSchema(z.object({ city: z.string() })),
        parse: JSON.parse,
        function: ({ city }) => JSON.stringify({ city, temperature: 18, condition: "sunny" }),
      },
    },
  ],
});
assert.match(await runner.finalContent(), /18/);

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

const anthropic = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const question = { model: name, max_tokens: 64, messages, temperature: 0 };
const message = await anthropic.messages.create(question);
const told = anthropic.messages.stream(question);
assert.equal(await told.finalText(), message.content[0].text);
assert.equal((await told.finalMessage()).usage.output_tokens, message.usage.output_tokens);
const counted = await anthropic.messages.countTokens({ model: name, messages });
assert.ok(counted.input_tokens > 0);
const answer = await anthropic.beta.messages.toolRunner({
  ...question,
  tools: [
    {
      type: "custom",
      name: "get_weather",
      description: "Get the current weather in a city",
      input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      parse: (input) => input,
      run: ({ city }) => JSON.stringify({ city, temperature: 18, condition: "sunny" }),
    },
  ],
});
assert.match(answer.content.at(-1).text, /18/);
console.log("ok: anthropic for JavaScript");

const ollama = new Ollama({ host: process.argv[2] });
const greedy = { temperature: 0, num_predict: 64 };
assert.deepEqual((await ollama.list()).models.map((model) => model.name), [name, "encoder"]);
assert.ok((await ollama.show({ model: name })).capabilities.includes("tools"));
const said = await ollama.chat({ model: name, messages, options: greedy });
let spoken = "";
for await (const part of await ollama.chat({ model: name, messages, options: greedy, stream: true })) {
  spoken += part.message.content;
}
assert.equal(spoken, said.message.content);
const completed = await ollama.generate({ model: name, prompt, options: greedy });
assert.ok(completed.response.length > 0 && completed.context.length > 0);
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const called = await ollama.chat({ model: name, messages, tools, options: greedy });
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Paris" });
const result = { role: "tool", tool_name: "get_weather", content: '{"temperature": 18, "condition": "sunny"}' };
const last = await ollama.chat({
  model: name,
  messages: [...messages, called.message, result],
  tools,
  options: greedy,
});
assert.match(last.message.content, /18/);
const texts = ["the model of the river", "a b"];
const { embeddings } = await ollama.embed({ model: "encoder", input: texts });
assert.equal(embeddings.length, 2);
assert.ok(Math.abs(Math.hypot(...embeddings[0]) - 1) < 1e-5);
await assert.rejects(ollama.chat({ model: "x", messages }), { status_code: 404 });
console.log("ok: ollama for JavaScript");
