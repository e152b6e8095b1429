-- OUTBOX_DUE: messages that are due, the longest due first. They are due again after a while, unless their outcome is
-- noted before.
-- needs: clock, full
-- keys: outbox, outbox_entries
-- args: most, again_ms# (after how long they are due again)
-- kept: for gateways
-- Answers: for each message its id and its entry
local now, taken = now_ms(), {}
go_on_when_full(key.outbox_entries)
for _, message in ipairs(redis.call('ZRANGEBYSCORE', key.outbox, '-inf', now, 'LIMIT', 0, most)) do
  local entry = redis.call('HGET', key.outbox_entries, message)
  if entry then
    redis.call('ZADD', key.outbox, now + again_ms, message)
    taken[#taken + 1], taken[#taken + 2] = message, entry
  else
    redis.call('ZREM', key.outbox, message)
  end
end
return taken
