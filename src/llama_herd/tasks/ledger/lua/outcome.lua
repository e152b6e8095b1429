-- The record tells how its job ended, so that whoever may read no events knows it, too.
local MAX_MESSAGE_BYTES = 2048

-- Shortens a text that is too long, between two characters: no character begins with the bits 10.
local function shortened(text)
  if #text <= MAX_MESSAGE_BYTES then return text end
  return string.match(string.sub(text, 1, MAX_MESSAGE_BYTES - 2), '^(.*)[^\128-\191]') .. '...'
end

local function error_in(event)
  local error = cjson.decode(event).error
  return cjson.encode({code = error.code, message = shortened(error.message), retriable = error.retriable})
end

-- Writes the outcome that a final event tells into the record. Returns its finish_reason.
local function note_outcome(job, event)
  local finish_reason = string.match(event, '"finish_reason":"(%a+)"')
  if finish_reason then redis.call('HSET', job, 'finish_reason', finish_reason) end
  if finish_reason == 'error' then
    local is_read, error = pcall(error_in, event)
    if is_read then redis.call('HSET', job, 'error', error) end
  end
  return finish_reason
end
