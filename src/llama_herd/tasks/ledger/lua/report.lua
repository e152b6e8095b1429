-- REPORT: store the report of a batch. It expires if no further report comes.
-- KEYS: 1 the report, 2 the index of such reports
-- ARGV: 1 name, 2 life (s), then field, value, ...
-- Answers whether its author was asked to end (END_BATCH).
local now = now_ms()
local asked = redis.call('HGET', KEYS[1], 'asked_to_end')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('HSET', KEYS[1], 'beat_ms', now)
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + 1000 * ARGV[2], ARGV[1])
if asked and redis.call('HGET', KEYS[1], 'state') == 'running' then
  redis.call('HSET', KEYS[1], 'asked_to_end', asked)
end
return asked and 1 or 0
