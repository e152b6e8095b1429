-- BATCH_CREATE: accept a batch: it is due at once. Repeating it changes nothing.
-- KEYS: 1 the batch, 2 the tenant's batches, 3 its input, a file, 4 the storage's due batches
-- ARGV: id, member, how long it may take (ms), the storage, what was asked for (JSON), most batches of the tenant (0:
--       any), start and end of a record's key, secret that its webhook is signed with ('': the tenant's)
-- Answers: {'ok', its record} | {'full', what, whose, has, limit} | {a word}: conflict (another one has this id) |
--       no_file | no_input (a file of another purpose) | elsewhere (a file in another storage)
local id, member, window_ms, own_storage, asked, most, start, stop, secret = unpack(ARGV)
local known = redis.call('HGET', KEYS[1], 'asked')
if known then return known == asked and {'ok', redis.call('HGETALL', KEYS[1])} or {'conflict'} end
local now = now_ms()
local name, purpose, storage, expires_ms = unpack(
  redis.call('HMGET', KEYS[3], 'name', 'purpose', 'storage', 'expires_ms'))
if not name or (tonumber(expires_ms) or math.huge) <= now then return {'no_file'} end
if purpose ~= 'batch' then return {'no_input'} end
if storage ~= own_storage then return {'elsewhere'} end

-- Of some of the oldest those whose records have gone do not count any more.
local function num_kept()
  for _, one in ipairs(redis.call('ZRANGE', KEYS[2], 0, 999)) do
    if not redis.call('HGET', start .. one .. stop, 'id') then redis.call('ZREM', KEYS[2], one) end
  end
  return redis.call('ZCARD', KEYS[2])
end

most = tonumber(most)
if most > 0 and redis.call('ZCARD', KEYS[2]) >= most then
  local num = num_kept()
  if num >= most then return {'full', 'batches', 'tenant', num, most} end
end
redis.call('HINCRBY', KEYS[3], 'users', 1)
redis.call('HSET', KEYS[1], 'id', id, 'asked', asked, 'state', 'validating', 'input_name', name,
  'created_ms', now, 'expires_ms', now + window_ms, 'epoch', 0)
if secret ~= '' then redis.call('HSET', KEYS[1], 'webhook_secret', secret) end
redis.call('ZADD', KEYS[2], now, id)
redis.call('ZADD', KEYS[4], now, member)
return {'ok', redis.call('HGETALL', KEYS[1])}
