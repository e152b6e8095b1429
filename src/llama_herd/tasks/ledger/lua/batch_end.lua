-- BATCH_END: end a batch, and record its files. It stays due until its parts are deleted.
-- KEYS: 1 the batch, 2 the storage's due batches, 3 its input, 4 the tenant's files, 5 the tenant's quota, 6 the storage's
--       due files, 7 to 10 those of the outbox, then each of its files
-- ARGV: member, epoch, final state, fingerprint of the key that made it, life of the record (s), the storage, life of its
--       files (ms), its id, the address that is told of its end ('': the tenant's), number of fields, field, value, ..., then for each file: id, member, name, bytes
-- Answers: ok | fenced
local member, epoch, final, owner, ttl_s, storage, life_ms, batch_id, hook, num_fields = unpack(ARGV, 1, 10)
local now = now_ms()
local state, current = unpack(redis.call('HMGET', KEYS[1], 'state', 'epoch'))
if current == epoch and state == final then return 'ok' end
if not state_of_mine(KEYS[1], epoch) then return 'fenced' end
if tonumber(num_fields) > 0 then redis.call('HSET', KEYS[1], unpack(ARGV, 11, 10 + num_fields)) end
local at, first = {files = KEYS[4], quota = KEYS[5], due = KEYS[6]}, 11 + num_fields
for place = 11, #KEYS do
  local id, of_storage, name, num_bytes = unpack(ARGV, first, first + 3)
  record_file(at, {key = KEYS[place], id = id, member = of_storage, name = name, purpose = 'batch_output',
    storage = storage, num_bytes = num_bytes, owner = owner, life_ms = life_ms}, now)
  first = first + 4
end
add_to_quota(KEYS[5], owner, 'rows', -(tonumber(redis.call('HGET', KEYS[1], 'num_rows')) or 0))
if redis.call('HGET', KEYS[3], 'id') then redis.call('HINCRBY', KEYS[3], 'users', -1) end
enter(KEYS[1], final, now)
note_batch_end(outbox_in(KEYS, 7), batch_id, final, now, hook, redis.call('HGET', KEYS[1], 'webhook_secret'))
redis.call('HDEL', KEYS[1], 'webhook_secret')
redis.call('EXPIRE', KEYS[1], ttl_s)
redis.call('ZADD', KEYS[2], now, member)
return 'ok'
