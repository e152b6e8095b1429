-- OUTBOX_SETTLE: note what became of a message. One that was forgotten meanwhile stays forgotten.
-- needs: clock, full
-- keys: outbox, outbox_entries, outbox_dead
-- args: message, outcome (sent, later or dead), in_ms# (in how long it is due again), entry (its new one, unless sent)
-- kept: for gateways
if not redis.call('ZSCORE', key.outbox, message) then return end
go_on_when_full(key.outbox_entries)
if outcome == 'later' then
  redis.call('ZADD', key.outbox, now_ms() + in_ms, message)
else
  redis.call('ZREM', key.outbox, message)
end
if outcome == 'dead' then redis.call('ZADD', key.outbox_dead, now_ms(), message) end
if outcome == 'sent' then
  redis.call('HDEL', key.outbox_entries, message)
else
  redis.call('HSET', key.outbox_entries, message, entry)
end
