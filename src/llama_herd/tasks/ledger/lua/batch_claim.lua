-- BATCH_CLAIM: take a batch that is due. The new epoch fences whoever had it.
-- KEYS: 1 the batch, 2 the storage's due batches
-- ARGV: 1 member, 2 lease (ms)
-- Answers: {'busy'} | {'gone'} | {'yours', now, its record}
local now = now_ms()
local due = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]))
local id, given_ms = unpack(redis.call('HMGET', KEYS[1], 'id', 'lease_ms'))
-- A lease that ends later than any is one of a clock that was put back. Other feeders may have longer ones.
local longest_ms = math.max(ARGV[2], given_ms or 0)
if not due or (due > now and due <= now + longest_ms) then return {'busy'} end
if not id then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return {'gone'}
end
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HINCRBY', KEYS[1], 'vain_claims', 1) -- until this feeder gets on with it, or gives it back
redis.call('HSET', KEYS[1], 'lease_ms', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
return {'yours', now, redis.call('HGETALL', KEYS[1])}
