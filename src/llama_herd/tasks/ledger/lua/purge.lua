-- PURGE: delete a job's prompt and output. A waiting job is cancelled first; a running one is left alone.
-- needs: clock, declare, end
-- keys: job, events, pending, delayed, leases, waiting, deadlines, webhook, outbox, outbox_entries, outbox_dead,
--       kept, ended, failed, untold, quarantine, owed, result (Celery's)
-- args: id, channel, ttl_s# (life of an ended job), failed_s# (its least, if it failed), end_tail (of the
--       final event), marks (1: leave a mark of an unknown id, too)
-- also lines: (pending:<list> of the list in which the job waits)
-- kept: for clients
-- Answers: purged | bare (purged; bare messages of it, which carry its prompt, may be elsewhere) | running | unknown |
--       {declare, the line}
-- For the life of an ended job a mark remains that this id is over, with nothing of the job but when it ended: a remaining
-- message must not run it again, and a list goes on behind it.
key.channel, key.ttl_s, key.failed_s = channel, ttl_s, failed_s
local state, owner, lease, bare, queue, lane, settled, ended_ms = unpack(
  redis.call('HMGET', key.job, 'state', 'owner', 'lease', 'bare', 'queue', 'lane', 'settled', 'ended_ms'))
if owner and state == 'running' and (tonumber(lease) or 0) > now_ms() then return 'running' end
if state == 'queued' or state == 'running' then
  local missing = undeclared(line_of(key.pending, queue, lane))
  if missing then return missing end
  -- If somebody else has written into record or stream, the end may not be possible. The job is deleted all the same.
  if not pcall(write_end, key, id, 'cancelled', end_tail) then
    for _, list in ipairs({key.pending, key.delayed, key.leases}) do redis.call('ZREM', list, id) end
  end
end

forget_webhook(key, id)
forget_kept(key)
if not state and marks ~= '1' then return 'unknown' end
redis.call('DEL', key.job, key.events, key.result)
redis.call('ZREM', key.quarantine, id)
redis.call('ZREM', key.untold, id)
unlist_ended(key, id)
redis.call('HSET', key.job, 'state', 'purged')
if ended_ms and not is_batch_row(id) then redis.call('HSET', key.job, 'ended_ms', ended_ms) end
redis.call('EXPIRE', key.job, ttl_s)
-- A result in another Redis a worker deletes, once that Redis is there.
if settled == 'elsewhere' or redis.call('ZSCORE', key.owed, id) then
  redis.call('HSET', key.job, 'life_ms', 1000 * ttl_s)
  redis.call('EXPIRE', key.job, math.max(ttl_s, ROW_LIFE_S))
  redis.call('ZADD', key.owed, now_ms(), id)
end
if not state then return 'unknown' end
-- Of a record that was lost nobody knows how its job came.
if bare == '0' or state == 'purged' and not bare then return 'purged' end
redis.call('HSET', key.job, 'bare', 1)
return 'bare'
