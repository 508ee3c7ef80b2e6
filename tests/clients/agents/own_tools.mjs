// OpenAI's Agents SDK with its shell, its patches and its computer, against a server whose URL is the one argument.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import {
  Agent,
  OpenAIProvider,
  Runner,
  applyPatchTool,
  computerTool,
  setTracingDisabled,
  shellTool,
} from "@openai/agents";

setTracingDisabled(true);
const run = promisify(execFile);
const done = [];

const shell = {
  async run(action) {
    const output = [];
    for (const command of action.commands) {
      const { stdout, stderr } = await run("sh", ["-c", command]);
      done.push(stdout);
      output.push({ stdout, stderr, outcome: { type: "exit", exitCode: 0 } });
    }
    return { output };
  },
};
const patched = async ({ type, path, diff }) => {
  done.push(`${type} ${path} ${diff}`);
  return { status: "completed", output: `RESULT${path[0]}` };
};
const editor = { createFile: patched, updateFile: patched, deleteFile: patched };
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const nothing = async () => {};
const computer = {
  environment: "linux",
  dimensions: [640, 480],
  screenshot: async () => (done.push("screenshot"), pixel),
  ...Object.fromEntries(["click", "doubleClick", "scroll", "type", "move", "keypress", "drag"].map((n) => [n, nothing])),
  wait: async () => void done.push("wait"),
};

const provider = new OpenAIProvider({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const runner = new Runner({ modelProvider: provider });
const tools = [shellTool({ shell }), applyPatchTool({ editor })];
const agent = new Agent({ name: "Assistant", model: "scripted", tools });
for (const stream of [false, true]) {
  done.length = 0;
  const result = await runner.run(agent, "Do it.", { stream });
  if (stream) for await (const event of result) assert.notEqual(event.type, "error");
  assert.deepEqual(done, ["RESULT1", "create_file 2.txt +a\n+b", "RESULT3"]);
  assert.equal(result.finalOutput, "All is done. RESULT1 RESULT2 RESULT3");
}
done.length = 0;
const looking = new Agent({ name: "Looking", model: "scripted", tools: [computerTool({ computer })] });
await assert.rejects(runner.run(looking, "Look.", { maxTurns: 2 }), /Max turns/);
assert.deepEqual(done.slice(0, 2), ["wait", "screenshot"]);
console.log("All is done.");
