-- RELEASE: give a claimed job back, to be run by whoever comes first. It costs the job no attempt.
-- KEYS: 1 job record, 2 pending, 3 leases
-- ARGV: 1 id, 2 owner, 3 epoch, 4 '1': push its message again (the one at hand will not return to the queue)
-- Answers: released | finished | fenced
local job, pending, leases = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local record = redis.call('HMGET', job,
  'owner', 'epoch', 'state', 'submitted_ms', 'started_epoch', 'attempts')
if record[1] ~= ARGV[2] or record[2] ~= ARGV[3] then return 'fenced' end
if record[3] ~= 'running' then return 'finished' end

-- Without an owner, whatever this worker still has on its way for the job is fenced.
redis.call('HSET', job, 'state', 'queued', 'lease', 0)
redis.call('HDEL', job, 'owner')
if record[5] == ARGV[3] and tonumber(record[6]) > 0 then redis.call('HINCRBY', job, 'attempts', -1) end
redis.call('ZREM', leases, id)
redis.call('ZADD', pending, record[4], id)
if ARGV[4] == '1' then push(job, id, now_ms()) end
return 'released'
