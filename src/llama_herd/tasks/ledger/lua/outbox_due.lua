-- OUTBOX_DUE: messages that are due, the longest due first. They are due again after a while, unless their outcome is
-- noted before.
-- KEYS: 1 outbox, 2 its entries
-- ARGV: 1 most messages, 2 after how long they are due again (ms)
-- Answers: for each message its id and its entry
local outbox, entries = KEYS[1], KEYS[2]
local now, taken = now_ms(), {}
for _, message in ipairs(redis.call('ZRANGEBYSCORE', outbox, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local entry = redis.call('HGET', entries, message)
  if entry then
    redis.call('ZADD', outbox, now + ARGV[2], message)
    taken[#taken + 1], taken[#taken + 2] = message, entry
  else
    redis.call('ZREM', outbox, message)
  end
end
return taken
