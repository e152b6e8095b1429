-- BATCH_END: end a batch, and record its files. It stays due until its parts are deleted.
-- needs: clock, batch, quota, file, outbox, full
-- keys: batch, due (the storage's due batches), input (a file), files, quota (of the tenant),
--       files_due (of the storage), webhook, outbox, outbox_entries, outbox_dead
-- args: member, epoch, final (state), owner (fingerprint of the key that made it), ttl_s (life of the record), storage,
--       life_ms (of its files; empty: for ever), batch_id, hook (the address that is told of its end; empty: the tenant's)
-- list made: keys file; args id, member, name, num_bytes
-- pairs fields:
-- kept: for gateways
-- Answers: ok | fenced
local now = now_ms()
local state, current = unpack(redis.call('HMGET', key.batch, 'state', 'epoch'))
if current == epoch and state == final then return 'ok' end
if not state_of_mine(key.batch, epoch) then return 'fenced' end
go_on_when_full(key.batch)
if #fields > 0 then redis.call('HSET', key.batch, unpack(fields)) end
for _, file in ipairs(made) do
  file.purpose, file.storage, file.owner, file.life_ms = 'batch_output', storage, owner, life_ms
  record_file(key, file, now)
end
add_to_quota(key.quota, owner, 'rows', -(tonumber(redis.call('HGET', key.batch, 'num_rows')) or 0))
if redis.call('HGET', key.input, 'id') then redis.call('HINCRBY', key.input, 'users', -1) end
enter(key.batch, final, now)
note_batch_end(key, batch_id, final, now, hook, redis.call('HGET', key.batch, 'webhook_secret'))
redis.call('HDEL', key.batch, 'webhook_secret')
redis.call('EXPIRE', key.batch, ttl_s)
redis.call('ZADD', key.due, now, member)
return 'ok'
