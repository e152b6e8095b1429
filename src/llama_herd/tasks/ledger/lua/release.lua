-- RELEASE: give a claimed job back to the queue. It counts as a death only if what computed the job has died.
-- needs: clock, declare, front, waiting, full
-- keys: job, pending, leases, waiting, deadlines
-- args: id, owner, epoch, pushes (1: its message again, if the caller's message will not return to the queue),
--       has_died (1: the server that computed it has died, though its worker lives)
-- also found: (pending:<list> of the job's list, and that list itself if the message is pushed)
-- Answers: released | finished | fenced | {declare, those of the last keys that are missing}
local record = redis.call('HMGET', key.job, 'owner', 'epoch', 'state', 'queue', 'tokens', 'lane', 'deadline_ms')
if record[1] ~= owner or record[2] ~= epoch then return 'fenced' end
if record[3] ~= 'running' then return 'finished' end
local list = pushes == '1' and own_queue(key.job, record[4] .. (record[6] or ''))
local missing = undeclared(line_of(key.pending, record[4], record[6]))
if list then missing = undeclared(list, missing) end
if missing then return missing end

-- It waits again: its message is pushed now, or returns when this worker closes its connection, a little later.
local now = now_ms()
go_on_when_full(key.job)
begin_to_wait(key, id, now, false,
  {queue = record[4], tokens = record[5], lane = record[6], deadline_ms = record[7]})
-- Without an owner, all events that this worker still sends for the job are fenced.
redis.call('HSET', key.job, 'state', 'queued', 'lease', 0)
redis.call('HDEL', key.job, 'owner')
if has_died == '1' then redis.call('HINCRBY', key.job, 'deaths', 1) end
redis.call('ZREM', key.leases, id)
if list then push_first(key.job, id, list, now) end
return 'released'
