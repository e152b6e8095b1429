-- PUT_BACK: messages that were noted as held go back into their lists, each as it came.
-- needs: clock, full
-- keys: notes, times (of the notes, in s)
-- args: at_end# (1: behind those that wait, 0: before them), max_bytes# (it ends with the message that goes beyond)
-- list tags: args tag
-- builds keys: the lists that the tags and notes name, so this script needs a single Redis, not a cluster
-- Answers how many of the tags it has seen to, how many messages went back, and the first refusal: a list may be none, or
--   Redis full. Such messages stay noted, as if held. A note of no message stays too, and nobody looks at it again.
local num, num_back, num_bytes, refusal = 0, 0, 0, ''

-- The message of a note, and its list as TAKE says it in the tag. A note of kombu's names the queue, whose first list it is.
local function taken(tag, note)
  local message, queue = string.match(note, '^%[(.*), ?"[^"]*", ?"([^"]*)"%]$')
  return message, string.match(tag, '^[^:]*:%d+:(.+)$') or queue
end

local function push(list, message)
  if at_end == 1 then return redis.pcall('LPUSH', list, message) end
  return redis.pcall('RPUSH', list, message)
end

go_on_when_full(key.notes)
for _, tag in ipairs(tags) do
  local message, list = taken(tag, redis.call('HGET', key.notes, tag) or '')
  local length = message and push(list, message)
  if type(length) == 'table' then
    refusal = refusal == '' and length.err or refusal
    redis.pcall('ZADD', key.times, 'XX', now_ms() / 1000, tag)
  else
    redis.call('ZREM', key.times, tag)
    if message then
      redis.call('HDEL', key.notes, tag)
      num_back, num_bytes = num_back + 1, num_bytes + #message
    end
  end
  num = num + 1
  if num_bytes > max_bytes then break end
end
return {num, num_back, refusal}
