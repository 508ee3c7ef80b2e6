-- Completions or chats, as the URL says, under wrk, against any server with OpenAI's API:
--
--   wrk -t 1 -c 32 -d 30s -s bench/wrk/completions.lua http://127.0.0.1:8000/v1/completions \
--       -- MODEL [MAX_TOKENS] [stream]
--
-- The key, if the server wants one, is taken from the environment's API_KEY. A request counts when
-- its last byte has come, so streams are measured whole.

local statuses = {}

function setup(thread)
  table.insert(statuses, thread)
end

function init(arguments)
  local model = arguments[1] or error("name the model: ... -- MODEL [MAX_TOKENS] [stream]")
  local max_tokens = tonumber(arguments[2] or 16)
  local stream = arguments[3] == "stream"
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  local key = os.getenv("API_KEY")
  if key then
    wrk.headers["Authorization"] = "Bearer " .. key
  end
  local prompt = '"prompt":"Once upon a time"'
  if wrk.path:find("/chat/completions", 1, true) then
    prompt = '"messages":[{"role":"user","content":"Once upon a time"}]'
  end
  wrk.body = string.format(
    '{"model":"%s",%s,"max_tokens":%d,"temperature":0.7,"top_p":0.9,"ignore_eos":true,"stream":%s}',
    model, prompt, max_tokens, tostring(stream))
  tokens_per_answer = max_tokens
  num_ok = 0
  num_failed = 0
end

function response(status)
  if status == 200 then
    num_ok = num_ok + 1
  else
    num_failed = num_failed + 1
  end
end

function done(summary, latency, requests)
  local ok, failed, tokens = 0, 0, 0
  for _, thread in ipairs(statuses) do
    ok = ok + thread:get("num_ok")
    failed = failed + thread:get("num_failed")
    tokens = tokens + thread:get("num_ok") * thread:get("tokens_per_answer")
  end
  local seconds = summary.duration / 1e6
  print(string.format("answers: %d, refused: %d, tokens/s: %.1f", ok, failed, tokens / seconds))
  print(string.format("latency: p50 %.1f ms, p99 %.1f ms, longest %.1f ms",
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
