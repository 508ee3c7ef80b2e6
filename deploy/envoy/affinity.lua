-- Answers with the affinity key of a request: eight hexadecimal digits, equal for requests whose
-- prompts begin alike, so that the replica that has computed the beginning is asked again.
--
-- Envoy sends each request here with the beginning of its body (see listeners.yaml), cut anywhere
-- and possibly hostile. So the JSON is not parsed but scanned: what is nested is stepped over by
-- its brackets and quotes alone, in a bounded number of steps, and nothing raises an error. A
-- request without a key gets an answer without one.

local VIEW = 262144 -- bytes of a body that Envoy sends: max_request_bytes of listeners.yaml
local MAX_STEPS = 10000 -- of one scan: what is behind them is not seen
local NUM_SYSTEM = 1024 -- bytes that are hashed of what stands before the first user message
local NUM_USER = 4096 -- bytes that are hashed of the first user message
local NUM_PROMPT = 512 -- bytes that are hashed of a plain prompt, which has no turns to end at

local find, byte, sub = string.find, string.byte, string.sub
local QUOTE, BACKSLASH, OPEN_BRACE, OPEN_BRACKET = 34, 92, 123, 91

-- CRC-32 as in zlib: the polynomial's table, then a byte at a time.
local crc_of_byte = {}
for index = 0, 255 do
  local crc = index
  for _ = 1, 8 do
    local shifted = bit.rshift(crc, 1)
    crc = bit.band(crc, 1) == 1 and bit.bxor(shifted, 0xEDB88320) or shifted
  end
  crc_of_byte[index] = crc
end

local function hash(text)
  local crc = -1
  for position = 1, #text do
    local index = bit.band(bit.bxor(crc, byte(text, position)), 255)
    crc = bit.bxor(crc_of_byte[index], bit.rshift(crc, 8))
  end
  return bit.tohex(bit.bnot(crc))
end

-- Scanning. A scan is {text, steps}; positions count from 1. Each function returns the position
-- behind what it has stepped over, or nil where the text or the steps end before that.

local function step(scan)
  scan.steps = scan.steps + 1
  return scan.steps <= MAX_STEPS
end

local function skip_space(scan, position)
  return find(scan.text, "[^ \t\r\n]", position)
end

-- A quote ends the string unless an odd number of backslashes stands before it.
local function skip_string(scan, start)
  local text, position = scan.text, start
  while step(scan) do
    position = find(text, '"', position + 1, true)
    if not position then
      return nil
    end
    local before = position - 1
    while byte(text, before) == BACKSLASH do
      before = before - 1
    end
    if (position - before) % 2 == 1 then
      return position + 1
    end
  end
  return nil
end

local function skip_nested(scan, start)
  local text, position, depth = scan.text, start, 0
  while step(scan) do
    position = find(text, '["{}%[%]]', position)
    if not position then
      return nil
    end
    local found = byte(text, position)
    if found == QUOTE then
      position = skip_string(scan, position)
      if not position then
        return nil
      end
    else
      depth = depth + ((found == OPEN_BRACE or found == OPEN_BRACKET) and 1 or -1)
      position = position + 1
      if depth == 0 then
        return position
      end
    end
  end
  return nil
end

local function skip_value(scan, start)
  local first = byte(scan.text, start)
  if first == QUOTE then
    return skip_string(scan, start)
  elseif first == OPEN_BRACE or first == OPEN_BRACKET then
    return skip_nested(scan, start)
  end
  return find(scan.text, "[,}%]%s]", start)
end

-- Reads the object at `start` into `members`: the text of each value by its name, the last one of
-- a name, and of a value that is cut what there is of it. Returns the position behind the object,
-- or nil.
local function read_object(scan, start, members)
  local text, position = scan.text, start
  if byte(text, position) ~= OPEN_BRACE then
    return nil
  end
  position = skip_space(scan, position + 1)
  if position and sub(text, position, position) == "}" then
    return position + 1
  end
  while position and byte(text, position) == QUOTE do
    local name_end = skip_string(scan, position)
    local colon = name_end and skip_space(scan, name_end)
    if not colon or sub(text, colon, colon) ~= ":" then
      return nil
    end
    local value = skip_space(scan, colon + 1)
    if not value then
      return nil
    end
    local value_end = skip_value(scan, value)
    members[sub(text, position + 1, name_end - 2)] = sub(text, value, (value_end or 0) - 1)
    local comma = value_end and skip_space(scan, value_end)
    if not comma then
      return nil
    end
    local found = sub(text, comma, comma)
    if found == "}" then
      return comma + 1
    elseif found ~= "," then
      return nil
    end
    position = skip_space(scan, comma + 1)
  end
  return nil
end

-- What is in a string's quotes, where it is one that is not empty; its escapes stay as they are.
local function string_of(value)
  return value and string.match(value, '^"(.+)"$')
end

-- The key that an id carries: the first 8 of the 32 digits of those that the replicas make (of
-- other ids the hash).
local function key_of_id(id)
  local digits = string.match(id, "^%a+[_-](%x+)$")
  if digits and #digits == 32 then
    return string.lower(sub(digits, 1, 8))
  end
  return hash(id)
end

local function id_in_path(path)
  return string.match(path, "/responses/(resp[_-][^/?]+)")
    or string.match(path, "/conversations/(conv[_-][^/?]+)")
end

-- The contents of the first message, and of the first one of a user, in the list of messages.
local function first_contents(messages)
  local scan, first = { text = messages, steps = 0 }, nil
  local position = skip_space(scan, 2)
  while position and byte(messages, position) == OPEN_BRACE do
    local message = {}
    position = read_object(scan, position, message)
    first = first or message.content
    if message.role == '"user"' then
      return first, message.content
    end
    local comma = position and skip_space(scan, position)
    if not comma or sub(messages, comma, comma) ~= "," then
      break
    end
    position = skip_space(scan, comma + 1)
  end
  return first, nil
end

-- A hash of what the prompt begins with. It ends with the first message of a user: later turns of
-- a chat have the same beginning, and other chats under the same system prompt have another.
local function key_of_beginning(members)
  local system, user = members.instructions or "", nil
  local messages = members.messages or members.input
  if messages and byte(messages) == OPEN_BRACKET then
    local first
    first, user = first_contents(messages)
    user = user or first
    system = system .. (first ~= user and first or "")
  elseif messages then
    user = messages
  elseif members.prompt then
    user = sub(members.prompt, 1, NUM_PROMPT)
  end
  if not user or user == "" or user == "null" then
    return nil
  end
  local model = members.model or ""
  return hash(model .. "\n" .. sub(system, 1, NUM_SYSTEM) .. "\n" .. sub(user, 1, NUM_USER))
end

-- The affinity key of a request, or nil.
local function affinity_key(path, session_id, body)
  local members, is_whole = {}, false
  local scan = { text = body, steps = 0 }
  local start = skip_space(scan, 1)
  local stop = start and read_object(scan, start, members)
  if not stop and #body < VIEW and scan.steps <= MAX_STEPS then
    members = {} -- it is not cut, so it is no JSON: nobody will compute a prompt for it
  end
  local conversation = members.conversation
  if conversation and byte(conversation) == OPEN_BRACE then
    local object = {}
    read_object({ text = conversation, steps = 0 }, 1, object)
    conversation = object.id
  end
  local id = string_of(conversation) or string_of(members.previous_response_id) or id_in_path(path)
  if id then
    return key_of_id(id)
  end
  if session_id == "" then
    session_id = nil
  end
  local name = string_of(members.prompt_cache_key) or session_id or string_of(members.user)
  if name then
    return hash(name)
  end
  return key_of_beginning(members)
end

function envoy_on_request(handle)
  local buffer = handle:body() -- waits for all of it; headers asked for before are no longer valid
  local headers, body = handle:headers(), ""
  if buffer and not headers:get("content-encoding") then
    body = buffer:getBytes(0, math.min(buffer:length(), VIEW))
  end
  local key = affinity_key(headers:get(":path") or "", headers:get("x-session-id"), body)
  handle:respond({ [":status"] = "200", ["x-fastovms-affinity"] = key }, "")
end
