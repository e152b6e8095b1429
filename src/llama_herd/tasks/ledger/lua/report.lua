-- REPORT: store the report of a worker or a batch. It expires if no further report comes.
-- KEYS: 1 the report, 2 the index of such reports, 3 served, only if the worker serves a queue
-- ARGV: 1 name, 2 life (s), 3 the queue that the worker serves, 4 most queues to remember, then field, value, ...
-- Answers whether its author was asked to end (END_BATCH).
local now = now_ms()
local asked = redis.call('HGET', KEYS[1], 'asked_to_end')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('HSET', KEYS[1], 'beat_ms', now)
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + 1000 * ARGV[2], ARGV[1])
if asked and redis.call('HGET', KEYS[1], 'state') == 'running' then
  redis.call('HSET', KEYS[1], 'asked_to_end', asked)
end
if KEYS[3] then
  redis.call('ZADD', KEYS[3], now, ARGV[3])
  for _, queue in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1 - ARGV[4])) do redis.call('ZREM', KEYS[3], queue) end
end
return asked and 1 or 0
