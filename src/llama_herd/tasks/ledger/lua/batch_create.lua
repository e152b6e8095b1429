-- BATCH_CREATE: accept a batch: it is due at once. Repeating it changes nothing.
-- KEYS: 1 the batch, 2 the tenant's batches, 3 its input, a file, 4 the storage's due batches
-- ARGV: 1 id, 2 member, 3 how long it may take (ms), 4 the storage, 5 what was asked for (JSON), 6 most batches of the
--       tenant (0: any), 7 and 8 start and end of a record's key
-- Answers: {'ok', its record} | {'full', what, whose, has, limit} | {a word}: conflict (another one has this id) |
--       no_file | no_input (a file of another purpose) | elsewhere (a file in another storage)
local known = redis.call('HGET', KEYS[1], 'asked')
if known then return known == ARGV[5] and {'ok', redis.call('HGETALL', KEYS[1])} or {'conflict'} end
local now = now_ms()
local name, purpose, storage, expires_ms = unpack(
  redis.call('HMGET', KEYS[3], 'name', 'purpose', 'storage', 'expires_ms'))
if not name or (tonumber(expires_ms) or math.huge) <= now then return {'no_file'} end
if purpose ~= 'batch' then return {'no_input'} end
if storage ~= ARGV[4] then return {'elsewhere'} end

-- Of some of the oldest those whose records have gone do not count any more.
local function num_kept()
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, 999)) do
    if not redis.call('HGET', ARGV[7] .. id .. ARGV[8], 'id') then redis.call('ZREM', KEYS[2], id) end
  end
  return redis.call('ZCARD', KEYS[2])
end

local most = tonumber(ARGV[6])
if most > 0 and redis.call('ZCARD', KEYS[2]) >= most then
  local num = num_kept()
  if num >= most then return {'full', 'batches', 'tenant', num, most} end
end
redis.call('HINCRBY', KEYS[3], 'users', 1)
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'asked', ARGV[5], 'state', 'validating', 'input_name', name,
  'created_ms', now, 'expires_ms', now + ARGV[3], 'epoch', 0)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZADD', KEYS[4], now, ARGV[2])
return {'ok', redis.call('HGETALL', KEYS[1])}
