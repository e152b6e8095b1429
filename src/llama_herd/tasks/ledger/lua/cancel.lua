-- CANCEL: end a job early. If it has a live owner, that worker is told to end it; else it is ended here.
-- needs: clock, declare, end, full
-- keys: job, events, pending, delayed, leases, waiting, deadlines, webhook, outbox, outbox_entries, outbox_dead,
--       kept, ended, failed, untold
-- args: id, channel, ttl_s# (life of an ended job), failed_s# (its least, if it failed), reason,
--       end_state, end_tail (of the final event), notice,
--       notices_to (what a worker's channel for notices begins with, before its id)
-- also lines: (pending:<list> of the list in which the job waits)
-- kept: for producers
-- Answers: cancelled (ended here) | asked (the owner will end it) | finished (it had ended before) |
--          unknown | {declare, the line}
key.channel, key.ttl_s, key.failed_s = channel, ttl_s, failed_s

local MOMENT_MS = 2000

local record = redis.call('HMGET', key.job, 'state', 'owner', 'lease', 'queue', 'lane', 'deadline_ms', 'late_until')
local state, owner, lease, now = record[1], record[2], tonumber(record[3]), now_ms()
local deadline_ms, late_until = tonumber(record[6]), tonumber(record[7])
if not state then return 'unknown' end
if state ~= 'queued' and state ~= 'running' then return 'finished' end
go_on_when_full(key.job)

-- An owner ends a late job by itself. What it has computed in time may still be on its way, all the more if it had lost
-- Redis: it has a moment to write that.
if owner and reason == 'deadline' and deadline_ms and deadline_ms <= now then
  if not late_until then
    late_until = now + MOMENT_MS
    redis.call('HSET', key.job, 'late_until', late_until)
  end
  if now < late_until then return 'asked' end
end
if owner and lease > now then
  redis.call('HSETNX', key.job, 'cancel', reason)
  redis.call('PUBLISH', notices_to .. owner, notice)
  return 'asked'
end
local missing = undeclared(line_of(key.pending, record[4], record[5]))
if missing then return missing end
write_end(key, id, end_state, end_tail)
redis.call('HSET', key.job, 'cancel', reason)
-- The worker that has heard a revoke tells Celery at once.
if reason == 'revoked' then redis.pcall('ZADD', key.untold, now, id) end
return 'cancelled'
