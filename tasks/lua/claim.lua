-- CLAIM: may this worker run the job?
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 leases
-- ARGV: 1 id, 2 channel, 3 life of an ended job (s), 4 owner, 5 lease (ms), 6 most attempts,
--       7 body, 8 queue, 9 envelope, 10 deadline (ms or ''): for a job that has no record yet; else '',
--       11 to 13 tails of the final event: cancelled, deadline, poisoned
-- Answers: yours | adopt, now, epoch, n, seq, attempts, starts, submitted, body
--          busy, ms left | finished | cancelled | expired | poison | unknown
local key = {job = KEYS[1], events = KEYS[2], pending = KEYS[3], leases = KEYS[4], channel = ARGV[2], ttl_s = ARGV[3]}
local id, owner, lease_ms, max_attempts = ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local body, queue, envelope, deadline_ms = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local now = now_ms()

-- A message that came without our client brings the job along: the record is made here.
if redis.call('EXISTS', key.job) == 0 then
  if body == '' then return {'unknown'} end
  write_record(key.job, key.pending, id, now, body, queue, envelope, deadline_ms)
end

local record = redis.call('HMGET', key.job, 'state', 'cancel', 'deadline_ms', 'owner', 'lease', 'attempts')
local state, cancel, deadline, current, lease = record[1], record[2], record[3], record[4], tonumber(record[5])

local function claimed(kind)
  local fields = redis.call('HMGET', key.job, 'epoch', 'n', 'seq', 'attempts', 'starts', 'submitted_ms', 'body')
  return {kind, now, unpack(fields)}
end

if state ~= 'queued' and state ~= 'running' then return {'finished'} end

if cancel == 'deadline' or (deadline and tonumber(deadline) <= now) then
  write_end(key, id, 'failed', ARGV[12])
  return {'expired'}
end
if cancel then
  write_end(key, id, 'cancelled', ARGV[11])
  return {'cancelled'}
end

-- A second delivery while the job runs. Its owner takes the new message for the old one; others wait.
if current and lease > now then
  if current == owner then return claimed('adopt') end
  return {'busy', lease - now}
end

-- Attempts count starts since the last recorded token: a job that kills its workers ends here.
if tonumber(record[6]) >= max_attempts then
  write_end(key, id, 'failed', ARGV[13])
  return {'poison'}
end

redis.call('HINCRBY', key.job, 'epoch', 1)
redis.call('HSET', key.job, 'state', 'running', 'owner', owner, 'lease', now + lease_ms, 'waits', 0)
redis.call('ZREM', key.pending, id)
redis.call('ZADD', key.leases, now + lease_ms, id)
return claimed('yours')
