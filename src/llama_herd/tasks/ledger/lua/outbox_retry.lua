-- OUTBOX_RETRY: let dead messages be due now, as if they had never been tried.
-- KEYS: 1 outbox, 2 its entries, 3 its dead
-- ARGV: messages
-- Answers: how many of them were dead
local outbox, entries, dead = KEYS[1], KEYS[2], KEYS[3]
local num = 0
for _, message in ipairs(ARGV) do
  local text = redis.call('HGET', entries, message)
  if redis.call('ZREM', dead, message) == 1 and text then
    local entry = cjson.decode(text)
    entry.tries, entry.error = 0, nil
    redis.call('HSET', entries, message, cjson.encode(entry))
    redis.call('ZADD', outbox, now_ms(), message)
    num = num + 1
  end
end
return num
