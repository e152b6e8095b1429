-- BATCH_CREATE: accept a batch: it is due at once. Repeating it changes nothing.
-- needs: clock
-- keys: batch, batches (of the tenant), input (a file), due (the storage's due batches)
-- args: id, member, window_ms# (how long it may take), own_storage, asked (what was asked for, as JSON),
--       most# (batches of the tenant; 0: any), before, after (what a record's key has before and after the id),
--       secret (that its webhook is signed with; empty: the tenant's)
-- kept: for gateways
-- Answers: {'ok', its record, or that of the batch that has this id} | {'full', what, whose, has, limit} |
--       {a word}: no_file | no_input (a file of another purpose) | elsewhere (a file in another storage)
if redis.call('HGET', key.batch, 'asked') then return {'ok', redis.call('HGETALL', key.batch)} end
local now = now_ms()
local name, purpose, storage, expires_ms = unpack(
  redis.call('HMGET', key.input, 'name', 'purpose', 'storage', 'expires_ms'))
if not name or (tonumber(expires_ms) or math.huge) <= now then return {'no_file'} end
if purpose ~= 'batch' then return {'no_input'} end
if storage ~= own_storage then return {'elsewhere'} end

-- Of some of the oldest those whose records have gone do not count any more.
local function num_kept()
  for _, one in ipairs(redis.call('ZRANGE', key.batches, 0, 999)) do
    if not redis.call('HGET', before .. one .. after, 'id') then redis.call('ZREM', key.batches, one) end
  end
  return redis.call('ZCARD', key.batches)
end

if most > 0 and redis.call('ZCARD', key.batches) >= most then
  local num = num_kept()
  if num >= most then return {'full', 'batches', 'tenant', num, most} end
end
redis.call('HINCRBY', key.input, 'users', 1)
redis.call('HSET', key.batch, 'id', id, 'asked', asked, 'state', 'validating', 'input_name', name,
  'created_ms', now, 'expires_ms', now + window_ms, 'epoch', 0)
if secret ~= '' then redis.call('HSET', key.batch, 'webhook_secret', secret) end
redis.call('ZADD', key.batches, now, id)
redis.call('ZADD', key.due, now, member)
return {'ok', redis.call('HGETALL', key.batch)}
