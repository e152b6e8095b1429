-- REPORT: store the report of a batch. It expires if no further report comes.
-- needs: clock
-- keys: report, index (of such reports)
-- args: name, life_s#
-- pairs fields:
-- kept: for gateways
-- Answers whether its author was asked to end (END_BATCH).
local now = now_ms()
local asked = redis.call('HGET', key.report, 'asked_to_end')
redis.call('DEL', key.report)
redis.call('HSET', key.report, unpack(fields))
redis.call('HSET', key.report, 'beat_ms', now)
redis.call('EXPIRE', key.report, life_s)
redis.call('ZREMRANGEBYSCORE', key.index, '-inf', now)
redis.call('ZADD', key.index, now + 1000 * life_s, name)
if redis.call('PTTL', key.index) < 1000 * life_s then redis.call('EXPIRE', key.index, life_s) end
if asked and redis.call('HGET', key.report, 'state') == 'running' then
  redis.call('HSET', key.report, 'asked_to_end', asked)
end
return asked and 1 or 0
