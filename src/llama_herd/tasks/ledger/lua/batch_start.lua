-- BATCH_START: let a batch begin whose input is valid, if the tenant and the key may have so many rows under way.
-- needs: clock, batch, quota, full
-- keys: batch, due (the storage's due batches), quota (of the tenant)
-- args: member, epoch, lease_ms#, num_rows#, model, owner (fingerprint of the key that made it),
--       most#, most_of_key# (rows of a tenant and of a key)
-- kept: for gateways
-- Answers: {'fenced'} | {'ok', its state} | {'full', what, whose, has, limit}
local now = now_ms()
local state = state_of_mine(key.batch, epoch)
if not state then return {'fenced'} end
go_on_when_full(key.batch)
if redis.call('HEXISTS', key.batch, 'num_rows') == 0 then
  local full = beyond_quota(key.quota, owner, 'rows', num_rows, most, most_of_key)
  if full then return full end
  redis.call('HSET', key.batch, 'num_rows', num_rows, 'model', model)
  add_to_quota(key.quota, owner, 'rows', num_rows)
end
if state == 'validating' then
  state = 'in_progress'
  enter(key.batch, state, now)
end
redis.call('ZADD', key.due, now + lease_ms, member)
return {'ok', state}
