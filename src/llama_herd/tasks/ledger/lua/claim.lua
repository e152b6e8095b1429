-- CLAIM: may this worker run the job?
-- needs: clock, declare, record, lost, full
-- keys: job, events, pending, delayed, leases, waiting, deadlines, webhook, outbox, outbox_entries, outbox_dead,
--       kept, ended, failed, untold, quarantine
-- args: id, channel, ttl_s# (life of an ended job), failed_s# (its least, if it failed), owner, worker (its name),
--       lease_ms#, max_deaths#,
--       quarantined_s# (life of a quarantined job), cancelled_tail, late_tail, poisoned_tail, lost_tail (of final events)
-- list bare: args body, envelope, deadline_ms, not_before, tokens, lane, webhook, secret, keep_s, metadata, queue
--       (what a bare message carries, see `record.lua`; of another message nothing)
-- also lines: (pending:<list> of the list in which the job waits)
-- Answers: yours | adopt, now, epoch, n, seq, deaths, attempts, due, deadline (ms or ''), body, lane, retries
--          busy, ms left | early | finished | settled | cancelled | expired | poison | unknown |
--          declare, the line
key.channel, key.ttl_s, key.failed_s = channel, ttl_s, failed_s
local brought = bare[1]
local now = now_ms()

local function read_record()
  return redis.call('HMGET', key.job,
    'state', 'cancel', 'deadline_ms', 'owner', 'lease', 'deaths', 'due_ms', 'queue', 'tokens',
    'epoch', 'preparing', 'computing', 'lane', 'bare', 'retry_ms')
end

local record = read_record()

-- A full Redis takes on no job whose output it may not keep.
if may_keep_more(key, now) then go_on_when_full(key.job) end

-- A bare message carries the job itself: its record is made here.
if not record[1] and redis.call('EXISTS', key.job) == 0 then
  local missing = undeclared(line_of(key.pending, brought and brought.queue, brought and brought.lane))
  if not brought then
    if not (redis.call('ZSCORE', key.pending, id) or redis.call('ZSCORE', key.leases, id)) then return {'unknown'} end
    if missing then return missing end
    end_lost(key, id, lost_tail)
    return {'finished'}
  end
  if missing then return missing end
  write_record(key, id, now, brought, 1)
  record = read_record()
end

local state, cancel, deadline, current, lease = record[1], record[2], record[3], record[4], tonumber(record[5])
local queue, tokens, lane = record[8], record[9], record[13]
local epoch, preparing, computing, retry_ms = record[10], record[11], record[12], record[15]
local missing = undeclared(line_of(key.pending, queue, lane))
if missing then return missing end

-- A job that was submitted, and came by a bare message as well.
if brought and record[14] ~= '1' and state ~= 'purged' then redis.call('HSET', key.job, 'bare', 1) end

local function claimed(kind)
  local fields = redis.call('HMGET', key.job, 'epoch', 'n', 'seq', 'deaths', 'attempts', 'due_ms', 'body', 'lane', 'retries')
  table.insert(fields, 7, deadline or '')
  return {kind, now, unpack(fields)}
end

-- Counts the jobs taken since `since`. Once that is more than a minute ago, the count shrinks to the last half minute.
-- A time in the future was written before the clock was put back: the count begins anew.
local function note_taken()
  local taken, since = unpack(redis.call('HMGET', key.waiting, queue .. ':taken', queue .. ':since'))
  taken, since = taken or 0, since or now
  if tonumber(since) > now then taken, since = 0, now end
  if now - since > 60000 then taken, since = taken * 30000 / (now - since), now - 30000 end
  redis.call('HSET', key.waiting, queue .. ':taken', taken + 1, queue .. ':since', since)
end

if state ~= 'queued' and state ~= 'running' then
  return {redis.call('HEXISTS', key.job, 'settled') == 1 and 'settled' or 'finished'}
end

if cancel == 'deadline' or (deadline and tonumber(deadline) <= now) then
  write_end(key, id, 'failed', late_tail)
  return {'expired'}
end
if cancel then
  write_end(key, id, 'cancelled', cancelled_tail)
  return {'cancelled'}
end

-- Not due yet: a sweep will push another message then. Of a job that is not delayed, such a time was written before the
-- clock was put back, and no sweep would push anything.
if tonumber(retry_ms or record[7]) > now and redis.call('ZSCORE', key.delayed, id) then return {'early'} end

-- A second delivery while the job runs. The owner takes the new message in place of the old one. Others wait until a
-- sweep has given up the owner: only the sweep knows of outages, after which owners get time to renew. It gives an
-- owner up by writing another time into `leases` than that of the lease. A lease further away than its own length was
-- written before the clock was put back.
local is_over = lease <= now or lease > now + lease_ms
local given_up = is_over and tonumber(redis.call('ZSCORE', key.leases, id)) ~= lease
if current and not given_up then
  if current == owner then return claimed('adopt') end
  return {'busy', math.max(0, lease - now)}
end

-- Its worker died. That counts against the job if the worker was preparing or computing it, but not if it only
-- waited there. After too many such deaths the job ends here.
local deaths = tonumber(record[6])
if current and (preparing == epoch or computing == epoch) then
  deaths = redis.call('HINCRBY', key.job, 'deaths', 1)
end
if deaths >= max_deaths then
  key.failed_s = quarantined_s
  write_end(key, id, 'failed', poisoned_tail)
  redis.call('ZADD', key.quarantine, now, id)
  local index_ms = redis.call('PTTL', key.quarantine)
  if index_ms < 1000 * quarantined_s then redis.call('EXPIRE', key.quarantine, quarantined_s) end
  return {'poison'}
end

redis.call('HINCRBY', key.job, 'epoch', 1)
redis.call('HSET', key.job,
  'state', 'running', 'owner', owner, 'worker', worker, 'lease', now + lease_ms, 'waits', 0,
  'claimed_ms', now)
if retry_ms then redis.call('HDEL', key.job, 'retry_ms') end
stop_waiting(key, id, queue, lane, tokens)
note_taken()
redis.call('ZADD', key.leases, now + lease_ms, id)
return claimed('yours')
