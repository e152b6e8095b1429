-- OUTBOX_RETRY: let dead messages be due now, as if they had never been tried.
-- needs: clock
-- keys: outbox, outbox_entries, outbox_dead
-- list messages: args message
-- Answers: how many of them were dead
local num = 0
for _, message in ipairs(messages) do
  local text = redis.call('HGET', key.outbox_entries, message)
  if redis.call('ZREM', key.outbox_dead, message) == 1 and text then
    local entry = cjson.decode(text)
    entry.tries, entry.error = 0, nil
    redis.call('HSET', key.outbox_entries, message, cjson.encode(entry))
    redis.call('ZADD', key.outbox, now_ms(), message)
    num = num + 1
  end
end
return num
