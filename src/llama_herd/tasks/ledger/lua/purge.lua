-- PURGE: delete a job's prompt and output. A waiting job is cancelled first; a running one is left alone.
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 delayed, 5 leases, 6 waiting, 7 pending:deadlines, 8 to 11 those of the
--       outbox, 12 quarantine, 13 Celery's result, then pending:<list> of the list in which the job waits
-- ARGV: 1 id, 2 channel, 3 life of an ended job (s), 4 tail of the final event, 5 '1': leave a mark of an unknown id, too
-- Answers: purged | bare (purged; bare messages of it, which carry its prompt, may be elsewhere) | running | unknown |
--       {declare, that last key}
-- For the life of an ended job a mark remains that this id is over, with nothing of the job: a remaining message must
-- not run it again.
local key = {job = KEYS[1], events = KEYS[2], pending = KEYS[3], delayed = KEYS[4], leases = KEYS[5],
  waiting = KEYS[6], channel = ARGV[2], ttl_s = ARGV[3]}
local id, quarantine, result = ARGV[1], KEYS[12], KEYS[13]

local state, owner, lease, bare, queue, lane = unpack(
  redis.call('HMGET', key.job, 'state', 'owner', 'lease', 'bare', 'queue', 'lane'))
if owner and state == 'running' and (tonumber(lease) or 0) > now_ms() then return 'running' end
if state == 'queued' or state == 'running' then
  local missing = undeclared(line_of(key.pending, queue, lane))
  if missing then return missing end
  -- If somebody else has written into record or stream, the end may not be possible. The job is deleted all the same.
  if not pcall(write_end, key, id, 'cancelled', ARGV[4]) then
    for _, list in ipairs({key.pending, key.delayed, key.leases}) do redis.call('ZREM', list, id) end
  end
end

forget_webhook(outbox_beside(key.leases), id)
if not state and ARGV[5] ~= '1' then return 'unknown' end
redis.call('DEL', key.job, key.events, result)
redis.call('ZREM', quarantine, id)
redis.call('HSET', key.job, 'state', 'purged')
redis.call('EXPIRE', key.job, key.ttl_s)
if not state then return 'unknown' end
-- Older versions do not note how a job came.
if bare == '0' or state == 'purged' and not bare then return 'purged' end
redis.call('HSET', key.job, 'bare', 1)
return 'bare'
