-- BATCH_CREATE: accept a batch: it is due at once. Repeating it changes nothing.
-- KEYS: 1 the batch, 2 the tenant's batches, 3 its input, a file, 4 the storage's due batches
-- ARGV: 1 id, 2 member, 3 how long it may take (ms), 4 the storage, 5 what was asked for (JSON)
-- Answers: {'ok', its record} | {a word}: conflict (another one has this id) | no_file | no_input (a file of another
--       purpose) | elsewhere (a file in another storage)
local known = redis.call('HGET', KEYS[1], 'asked')
if known then return known == ARGV[5] and {'ok', redis.call('HGETALL', KEYS[1])} or {'conflict'} end
local now = now_ms()
local name, purpose, storage, expires_ms = unpack(
  redis.call('HMGET', KEYS[3], 'name', 'purpose', 'storage', 'expires_ms'))
if not name or (tonumber(expires_ms) or math.huge) <= now then return {'no_file'} end
if purpose ~= 'batch' then return {'no_input'} end
if storage ~= ARGV[4] then return {'elsewhere'} end
redis.call('HINCRBY', KEYS[3], 'users', 1)
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'asked', ARGV[5], 'state', 'validating', 'input_name', name,
  'created_ms', now, 'expires_ms', now + ARGV[3], 'epoch', 0)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZADD', KEYS[4], now, ARGV[2])
return {'ok', redis.call('HGETALL', KEYS[1])}
