-- CANCEL: end a job early. If it has a live owner, that worker is told to end it; else it is ended here.
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 delayed, 5 leases, 6 waiting, 7 pending:deadlines, 8 to 11 those of the
--       outbox, then pending:<list> of the list in which the job waits
-- ARGV: 1 id, 2 channel, 3 life of an ended job (s), 4 reason, 5 state, 6 tail of the final event, 7 notice,
--       8 what a worker's channel for notices begins with, before its id
-- Answers: cancelled (ended here) | asked (the owner will end it; not for the reason `expired`) |
--          finished (it had ended before) | unknown | {declare, that last key}
local key = {job = KEYS[1], events = KEYS[2], pending = KEYS[3], delayed = KEYS[4], leases = KEYS[5],
  waiting = KEYS[6], channel = ARGV[2], ttl_s = ARGV[3]}
local id, reason, end_state, end_tail, notice, notices_to = ARGV[1], unpack(ARGV, 4, 8)

local record = redis.call('HMGET', key.job, 'state', 'owner', 'lease', 'queue', 'lane')
local state, owner, lease = record[1], record[2], tonumber(record[3])
if not state then return 'unknown' end
if state ~= 'queued' and state ~= 'running' then return 'finished' end

if owner and lease > now_ms() then
  -- A message that comes again after it has expired does not end a job that began in time.
  if reason == 'expired' then return 'asked' end
  redis.call('HSETNX', key.job, 'cancel', reason)
  redis.call('PUBLISH', notices_to .. owner, notice)
  return 'asked'
end
local missing = undeclared(line_of(key.pending, record[4], record[5]))
if missing then return missing end
write_end(key, id, end_state, end_tail)
redis.call('HSET', key.job, 'cancel', reason)
return 'cancelled'
