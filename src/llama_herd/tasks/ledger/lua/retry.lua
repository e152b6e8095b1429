-- RETRY: put back a job whose attempt has failed. A sweep pushes its message when it is to be tried again. Its events remain,
-- and no death is counted.
-- needs: clock, waiting, full
-- keys: job, pending, delayed, leases, waiting, deadlines
-- args: id, owner, epoch, seq# (of the last event that its owner has sent), delay_ms#, left# (tries after this one),
--       error (JSON: why the attempt has failed)
-- Answers: ok, also to a repeated call | as EMIT a refusal {kind, recorded seq, recorded n, reason}, of the kind
--       fenced | finished | cancelled | gap | late (its deadline is over before the next try)
local record = redis.call('HMGET', key.job,
  'owner', 'epoch', 'state', 'seq', 'n', 'cancel', 'deadline_ms', 'retry_ms', 'queue', 'tokens', 'lane',
  'retries')
local current, recorded, cancel, deadline_ms = record[1], tonumber(record[4]) or 0, record[6], record[7]
local retry_ms = now_ms() + delay_ms

-- Its claim takes `retry_ms` away, under another epoch.
if record[2] == epoch and record[3] == 'queued' and record[8] then return 'ok' end

local function refused(kind) return {kind, recorded, tonumber(record[5]) or 0, cancel or ''} end
if current ~= owner or record[2] ~= epoch then return refused('fenced') end
if record[3] ~= 'running' then return refused('finished') end
if cancel then return refused('cancelled') end
if recorded < seq then return refused('gap') end
if deadline_ms and tonumber(deadline_ms) <= retry_ms then return refused('late') end

go_on_when_full(key.job)
begin_to_wait(key, id, retry_ms, true,
  {queue = record[9], tokens = record[10], lane = record[11], deadline_ms = deadline_ms})
redis.call('HSET', key.job, 'state', 'queued', 'lease', 0, 'retries', (tonumber(record[12]) or 0) + 1,
  'retries_left', left, 'retry_ms', retry_ms, 'retry_error', error)
redis.call('HDEL', key.job, 'owner')
redis.call('ZREM', key.leases, id)
return 'ok'
