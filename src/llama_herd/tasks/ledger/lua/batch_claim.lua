-- BATCH_CLAIM: take a batch that is due. The new epoch fences whoever had it.
-- needs: clock, full
-- keys: batch, due (the storage's due batches)
-- args: member, lease_ms#
-- kept: for gateways
-- Answers: {'busy'} | {'gone'} | {'yours', now, its record}
local now = now_ms()
local due_ms = tonumber(redis.call('ZSCORE', key.due, member))
local id, given_ms = unpack(redis.call('HMGET', key.batch, 'id', 'lease_ms'))
-- A lease that ends later than any is one of a clock that was put back. Other feeders may have longer ones.
local longest_ms = math.max(lease_ms, given_ms or 0)
if not due_ms or (due_ms > now and due_ms <= now + longest_ms) then return {'busy'} end
if not id then
  redis.call('ZREM', key.due, member)
  return {'gone'}
end
go_on_when_full(key.batch)
redis.call('HINCRBY', key.batch, 'epoch', 1)
redis.call('HINCRBY', key.batch, 'vain_claims', 1) -- until this feeder gets on with it, or gives it back
redis.call('HSET', key.batch, 'lease_ms', lease_ms)
redis.call('ZADD', key.due, now + lease_ms, member)
return {'yours', now, redis.call('HGETALL', key.batch)}
