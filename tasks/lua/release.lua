-- RELEASE: give a claimed job back, to be run by whoever comes first. It costs the job no attempt.
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 delayed, 5 leases, 6 waiting
-- ARGV: 1 id, 2 owner, 3 epoch, 4 '1': push its message again (the one at hand will not return to the queue)
-- Answers: released | finished | fenced
local key = {job = KEYS[1], pending = KEYS[3], delayed = KEYS[4], leases = KEYS[5], waiting = KEYS[6]}
local id = ARGV[1]

local record = redis.call('HMGET', key.job,
  'owner', 'epoch', 'state', 'due_ms', 'started_epoch', 'attempts', 'queue', 'tokens')
if record[1] ~= ARGV[2] or record[2] ~= ARGV[3] then return 'fenced' end
if record[3] ~= 'running' then return 'finished' end

-- Without an owner, whatever this worker still has on its way for the job is fenced.
redis.call('HSET', key.job, 'state', 'queued', 'lease', 0)
redis.call('HDEL', key.job, 'owner')
if record[5] == ARGV[3] and tonumber(record[6]) > 0 then redis.call('HINCRBY', key.job, 'attempts', -1) end
redis.call('ZREM', key.leases, id)
-- A message that is pushed stands behind all others; one that returns by itself stands where it was.
local now, is_pushed = now_ms(), ARGV[4] == '1'
begin_waiting(key, id, is_pushed and now or record[4], record[7], record[8])
if is_pushed then push(key.job, id, now) end
return 'released'
