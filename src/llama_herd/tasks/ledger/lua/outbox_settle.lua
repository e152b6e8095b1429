-- OUTBOX_SETTLE: note what became of a message. One that was forgotten meanwhile stays forgotten.
-- KEYS: 1 outbox, 2 its entries, 3 its dead
-- ARGV: 1 message, 2 outcome: sent | later | dead, 3 in how long it is due again (ms), 4 its entry; both unless sent
local outbox, entries, dead = KEYS[1], KEYS[2], KEYS[3]
local message, outcome, in_ms, entry = unpack(ARGV)
if not redis.call('ZSCORE', outbox, message) then return end
if outcome == 'later' then
  redis.call('ZADD', outbox, now_ms() + in_ms, message)
else
  redis.call('ZREM', outbox, message)
end
if outcome == 'dead' then redis.call('ZADD', dead, now_ms(), message) end
if outcome == 'sent' then
  redis.call('HDEL', entries, message)
else
  redis.call('HSET', entries, message, entry)
end
