-- OUTBOX_RETRY: let dead messages be due now, as if they had never been tried.
-- needs: clock
-- keys: outbox, outbox_entries, outbox_dead
-- list messages: args message
-- Answers: how many of them were dead, and can be read; the others are forgotten

-- Returns an entry that was never tried. Raises an error for what is none.
local function anew(text)
  local entry = cjson.decode(text)
  entry.tries, entry.error = 0, nil
  return cjson.encode(entry)
end

local num = 0
for _, message in ipairs(messages) do
  local text = redis.call('HGET', key.outbox_entries, message)
  if redis.call('ZREM', key.outbox_dead, message) == 1 and text then
    local is_read, entry = pcall(anew, text)
    if is_read then
      redis.call('HSET', key.outbox_entries, message, entry)
      redis.call('ZADD', key.outbox, now_ms(), message)
      num = num + 1
    else
      redis.call('HDEL', key.outbox_entries, message)
    end
  end
end
return num
