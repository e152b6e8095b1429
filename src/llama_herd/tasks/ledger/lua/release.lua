-- RELEASE: give a claimed job back to the queue. This does not count as a death.
-- KEYS: 1 job record, 2 pending, 3 leases, 4 waiting, 5 pending:deadlines, then pending:<list> of the job's list, and that
--       list itself if the message is pushed
-- ARGV: 1 id, 2 owner, 3 epoch, 4 '1': push its message again (if the caller's message will not return to the queue)
-- Answers: released | finished | fenced | {declare, those of the last keys that are missing}
local key = {job = KEYS[1], pending = KEYS[2], leases = KEYS[3], waiting = KEYS[4]}
local id = ARGV[1]

local record = redis.call('HMGET', key.job, 'owner', 'epoch', 'state', 'queue', 'tokens', 'lane', 'deadline_ms')
if record[1] ~= ARGV[2] or record[2] ~= ARGV[3] then return 'fenced' end
if record[3] ~= 'running' then return 'finished' end
local list = ARGV[4] == '1' and own_queue(key.job, record[4] .. (record[6] or ''))
local missing = undeclared(line_of(key.pending, record[4], record[6]))
if list then missing = undeclared(list, missing) end
if missing then return missing end

-- It waits again: its message is pushed now, or returns when this worker closes its connection, a little later.
local now = now_ms()
begin_to_wait(key, id, now, false,
  {queue = record[4], tokens = record[5], lane = record[6], deadline_ms = record[7]})
-- Without an owner, all events that this worker still sends for the job are fenced.
redis.call('HSET', key.job, 'state', 'queued', 'lease', 0)
redis.call('HDEL', key.job, 'owner')
redis.call('ZREM', key.leases, id)
if list then push_first(key.job, id, list, now) end
return 'released'
