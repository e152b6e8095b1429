-- RELEASE: give a claimed job back to the queue. This does not count as a death.
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 delayed, 5 leases, 6 waiting
-- ARGV: 1 id, 2 owner, 3 epoch, 4 '1': push its message again (if the caller's message will not return to the queue)
-- Answers: released | finished | fenced
local key = {job = KEYS[1], pending = KEYS[3], delayed = KEYS[4], leases = KEYS[5], waiting = KEYS[6]}
local id = ARGV[1]

local record = redis.call('HMGET', key.job, 'owner', 'epoch', 'state', 'queue', 'tokens', 'lane', 'deadline_ms')
if record[1] ~= ARGV[2] or record[2] ~= ARGV[3] then return 'fenced' end
if record[3] ~= 'running' then return 'finished' end

-- It waits again: its message is pushed now, or returns when this worker closes its connection, a little later.
local now = now_ms()
begin_to_wait(key, id, now, false,
  {queue = record[4], tokens = record[5], lane = record[6], deadline_ms = record[7]})
-- Without an owner, all events that this worker still sends for the job are fenced.
redis.call('HSET', key.job, 'state', 'queued', 'lease', 0)
redis.call('HDEL', key.job, 'owner')
redis.call('ZREM', key.leases, id)
if ARGV[4] == '1' then push_first(key.job, id, record[4] .. (record[6] or ''), now) end
return 'released'
