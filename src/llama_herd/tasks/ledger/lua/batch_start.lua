-- BATCH_START: let a batch begin whose input is valid, if the tenant and the key may have so many rows under way.
-- KEYS: 1 the batch, 2 the storage's due batches, 3 the tenant's quota
-- ARGV: member, epoch, lease (ms), number of rows, model, fingerprint of the key that made it, most rows of a tenant and
--       of a key
-- Answers: {'fenced'} | {'ok', its state} | {'full', what, whose, has, limit}
local member, epoch, lease_ms, num_rows, model, owner, most, most_of_key = unpack(ARGV)
local now = now_ms()
local state = state_of_mine(KEYS[1], epoch)
if not state then return {'fenced'} end
if redis.call('HEXISTS', KEYS[1], 'num_rows') == 0 then
  local full = beyond_quota(KEYS[3], owner, 'rows', tonumber(num_rows), most, most_of_key)
  if full then return full end
  redis.call('HSET', KEYS[1], 'num_rows', num_rows, 'model', model)
  add_to_quota(KEYS[3], owner, 'rows', num_rows)
end
if state == 'validating' then
  state = 'in_progress'
  enter(KEYS[1], state, now)
end
redis.call('ZADD', KEYS[2], now + lease_ms, member)
return {'ok', state}
