-- SWEEP: push the messages of jobs that nobody else will deliver: lost messages, and those of delayed jobs that are
-- due. Every worker calls it about once a second.
-- KEYS: 1 pending, 2 delayed, 3 leases, 4 waiting, 5 sweep (last: time of the last sweep, hold: do nothing before,
--       gaps: how many sweeps in a row came late, offset: where among the waiting jobs to look next, awake: since when
--       some worker sweeps), 6 dead letters, 7 served
-- ARGV: 1 beginning of a job's keys, ends of the keys of 2 record and 3 events, 4 channels' prefix,
--       5 shortest time between sweeps (ms), 6 a longer time than this is a gap (ms), 7 lease (ms), 8 patience (ms),
--       9 most pushes of overtaken messages, 10 most waiting jobs to look at, 11 life of an ended job (s),
--       12 life of a dead letter (s), 13 and 14 tails of the final event: deadline, cancelled,
--       15 most jobs of dead workers to take back, 16 a job ends after so long if no worker has ever served its queue
--       (ms; 0: never), 17 tail of its final event, 18 longer than this without a sweep, and all workers were away (ms),
--       19 tail of the final event of a job whose record is gone, 20 most messages in the outbox, then the queues that may be without a worker
-- Answers: {swept, ids of lost messages ...} | {early} | {held}
-- The records' keys are built here, so this script needs a single Redis, not a cluster.
local pending, delayed, leases, waiting, sweep, dead, served = unpack(KEYS)
local keys_start, record_end, events_end, channels = unpack(ARGV, 1, 4)
local between_ms, gap_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local lease_ms, patience_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local max_pushes, max_looks, max_taken = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[15])
local ended_s, letter_s, unserved_ms, away_ms = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[16]), tonumber(ARGV[18])
local late_tail, cancelled_tail, unserved_tail, lost_tail = ARGV[13], ARGV[14], ARGV[17], ARGV[19]
local max_outbox = tonumber(ARGV[20])
local deadlines = deadlines_of(pending)
local now, swept = now_ms(), {'swept'}

local turn = redis.call('HMGET', sweep, 'last', 'hold', 'gaps', 'offset', 'awake')
local last, hold = tonumber(turn[1] or 0), tonumber(turn[2] or 0)
local gaps, offset, awake = tonumber(turn[3] or 0), tonumber(turn[4] or 0), tonumber(turn[5] or now)
if now - last < between_ms and now >= last then return {'early'} end

-- After a gap (Redis stood still, or there was no worker) live owners first get time to renew their leases.
-- Slow sweepers see nothing but gaps. So the fourth gap in a row holds nothing up; else they would never sweep.
if now - last > gap_ms then
  gaps = (gaps + 1) % 4
  hold = gaps > 0 and now + lease_ms or 0
else
  gaps = 0
end
-- While all workers are away, nobody could begin to serve a queue: that time is not counted.
if now - last > math.max(gap_ms, away_ms) or awake > now then awake = now end
redis.call('HSET', sweep, 'last', now, 'hold', hold, 'gaps', gaps, 'awake', awake)

local function job_key(id) return keys_start .. id .. record_end end

-- How long to wait for a claim after so many pushes in vain: patience x 1, 2, 4 ... 256.
local function wait_ms(waits) return patience_ms * 2 ^ math.min(math.max((tonumber(waits) or 0) - 1, 0), 8) end

-- Calls `act` for one job. If its record is damaged, that job is put off, and the others go on.
local function attempt(index, id, act, ...)
  if not pcall(act, id, ...) then redis.call('ZADD', index, now + patience_ms * 256, id) end
end

-- A lease that lies further away than its own length was written before the clock was put back: it is set to a full
-- lease from now, and a longer wait than possible to the shortest.
local function shorten(id, score)
  local state, lease, waits = unpack(redis.call('HMGET', job_key(id), 'state', 'lease', 'waits'))
  if state ~= 'running' then
    redis.call('ZREM', leases, id)
  elseif tonumber(lease) == score then
    redis.call('HSET', job_key(id), 'lease', now + lease_ms)
    redis.call('ZADD', leases, now + lease_ms, id)
  elseif score > now + wait_ms(waits) then
    redis.call('ZADD', leases, now + patience_ms, id)
  end
end

-- Among very many, where to begin differs from sweep to sweep, so that long waits hide no lease.
local beyond = string.format('(%.0f', now + lease_ms)
local num_beyond = redis.call('ZCOUNT', leases, beyond, '+inf')
local first = num_beyond > max_taken and now % (num_beyond - max_taken + 1) or 0
local far = redis.call('ZRANGEBYSCORE', leases, beyond, '+inf', 'WITHSCORES', 'LIMIT', first, max_taken)
for place = 1, #far, 2 do attempt(leases, far[place], shorten, tonumber(far[place + 1])) end

-- A hold longer than a lease was written before the clock of Redis was put back: ignore it.
if now < hold and hold - now <= lease_ms then return {'held'} end

-- Pushes a job's message, so that it is taken next. Returns how long to wait for a claim.
local function push_again(job, id, list)
  local waits = redis.call('HINCRBY', job, 'waits', 1)
  redis.call('HSET', job, 'pushed_ms', push_first(job, id, list, now))
  swept[#swept + 1] = id
  return wait_ms(waits)
end

-- Delayed jobs that are due. Whenever they were accepted, they go behind the messages that are in the queue now.
local function deliver(id)
  redis.call('ZREM', delayed, id)
  local state, queue, lane, tokens = unpack(redis.call('HMGET', job_key(id), 'state', 'queue', 'lane', 'tokens'))
  if state ~= 'queued' then return end
  count_delayed({waiting = waiting}, queue, -1, -(tonumber(tokens) or 0))
  redis.call('ZADD', pending, now, id)
  redis.call('ZADD', line_of(pending, queue, lane), now, id)
  push(job_key(id), id, now)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, max_looks)) do
  attempt(pending, id, deliver)
end

-- Queues that were served at some time, or may be without a worker: their names are no mistake.
local is_known = {}
for place = 21, #ARGV do is_known[ARGV[place]] = true end

-- Whether a job has waited for too long, since it was due and since workers are up, in a queue that nobody ever served.
local function is_unserved(queue, due_ms)
  if unserved_ms == 0 or now - math.max(awake, tonumber(due_ms) or 0) <= unserved_ms then return false end
  if is_known[queue] == nil then is_known[queue] = redis.call('ZSCORE', served, queue) and true end
  return not is_known[queue]
end

local function keys_of(id)
  return {job = job_key(id), events = keys_start .. id .. events_end, channel = channels .. id, ttl_s = ended_s,
    pending = pending, delayed = delayed, leases = leases, waiting = waiting}
end

-- Ends a job that nobody runs, if its deadline is over, it is cancelled, or nobody will serve its queue. Returns
-- whether it did.
local function end_early(id, deadline_ms, cancel, queue, due_ms)
  local is_late = cancel == 'deadline' or deadline_ms and tonumber(deadline_ms) <= now
  local is_left = not (is_late or cancel) and is_unserved(queue, due_ms)
  if not (is_late or cancel or is_left) then return false end
  local tail = is_late and late_tail or is_left and unserved_tail or cancelled_tail
  write_end(keys_of(id), id, (is_late or is_left) and 'failed' or 'cancelled', tail)
  return true
end

-- Returns whether a message that was pushed here since the last claim still waits in its list. A time in the future was
-- written before the clock was put back, like those of all messages in the list until the first of a later time.
local function is_on_its_way(waits, pushed_ms, list)
  local pushed, front = tonumber(pushed_ms or 0), front_ms(list, now)
  return waits ~= '0' and pushed + patience_ms > front and (pushed <= now or front > now)
end

-- Running jobs whose lease is over: their worker died, froze, or dropped them.
local function take_back(id)
  local job = job_key(id)
  local state, queue, lane, deadline_ms, cancel, due_ms, waits, pushed_ms = unpack(
    redis.call('HMGET', job, 'state', 'queue', 'lane', 'deadline_ms', 'cancel', 'due_ms', 'waits', 'pushed_ms'))
  if not state then
    end_lost(keys_of(id), id, lost_tail)
  elseif state ~= 'running' then
    redis.call('ZREM', leases, id)
  elseif end_early(id, deadline_ms, cancel, queue, due_ms) then
    return
  elseif is_on_its_way(waits, pushed_ms, queue .. (lane or '')) then
    redis.call('ZADD', leases, now + patience_ms, id)
  else
    redis.call('ZADD', leases, now + push_again(job, id, queue .. (lane or '')), id)
    if deadline_ms then redis.call('ZADD', deadlines, deadline_ms, id) end
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, max_taken)) do
  attempt(leases, id, take_back)
end

-- Jobs whose deadline is over. A live owner ends its own.
local function end_late(id)
  local state, queue, deadline_ms, lease = unpack(
    redis.call('HMGET', job_key(id), 'state', 'queue', 'deadline_ms', 'lease'))
  local is_left = state == 'queued'
  if state == 'running' then
    lease = tonumber(lease) or 0
    is_left = (lease <= now or lease > now + lease_ms) and tonumber(redis.call('ZSCORE', leases, id)) ~= lease
  end
  local is_late = deadline_ms and tonumber(deadline_ms) <= now
  if not (is_left and is_late and end_early(id, deadline_ms, false, queue)) then redis.call('ZREM', deadlines, id) end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, max_looks)) do
  attempt(deadlines, id, end_late)
end

-- Waiting jobs that were overtaken: messages younger by more than our patience are being taken from the same list. By age
-- alone, a whole backlog would be pushed again. The score is when the job was accepted; each push in vain puts it off.
local num_taken = #swept
local function recover(id, line, list)
  local state, queue, deadline_ms, cancel, due_ms = unpack(
    redis.call('HMGET', job_key(id), 'state', 'queue', 'deadline_ms', 'cancel', 'due_ms'))
  if state ~= 'queued' then
    redis.call('ZREM', line, id)
  elseif not end_early(id, deadline_ms, cancel, queue, due_ms) then
    redis.call('ZADD', line, now + push_again(job_key(id), id, list) - patience_ms, id)
  end
end

-- A time in the future, and no put-off, was written before the clock was put back. The list has no message from before
-- that: the job counts as just overtaken by the next one.
local function begin_anew(id, line, since, front)
  if since > now - patience_ms + wait_ms(redis.call('HGET', job_key(id), 'waits')) then
    redis.call('ZADD', line, front, id)
  end
end

local function recover_from(list)
  local line = line_of(pending, list)
  if redis.call('EXISTS', line) == 0 then return end
  local front, later = front_ms(list, now), string.format('(%.0f', now)
  -- Messages from before the clock was put back come first. They have overtaken none of those that came after it.
  local from = front > now and later or '-inf'
  local num_left = max_pushes - (#swept - num_taken)
  local overtaken = num_left > 0 and
    redis.call('ZRANGEBYSCORE', line, from, front - patience_ms, 'LIMIT', 0, num_left) or {}
  for _, id in ipairs(overtaken) do attempt(line, id, recover, line, list) end
  if front > now then return end
  local ahead = redis.call('ZRANGEBYSCORE', line, later, '+inf', 'WITHSCORES', 'LIMIT', 0, max_looks)
  for place = 1, #ahead, 2 do attempt(line, ahead[place], begin_anew, line, tonumber(ahead[place + 1]), front) end
end

-- The queues in which jobs wait or waited.
local queues, is_named = {}, {}
for _, field in ipairs(redis.call('HKEYS', waiting)) do
  local queue = string.match(field, '^(.*):%l+$')
  if queue and not is_named[queue] and pcall(own_queue, pending, queue) then
    queues[#queues + 1], is_named[queue] = queue, true
  end
end

-- Each sweep begins at another queue, so that one with many lost messages keeps none from the others; of very many it
-- looks at some.
for place = 1, math.min(#queues, max_looks) do
  for _, lane in ipairs(LANES) do pcall(recover_from, queues[(place + now) % #queues + 1] .. lane) end
end

-- The other waiting jobs, some in each sweep: those to be ended, and those that older scripts have accepted, which know
-- neither lines nor deadlines.
local num_looked, num_left = 0, 0
local function look(id, since)
  local state, queue, lane, deadline_ms, cancel, due_ms = unpack(
    redis.call('HMGET', job_key(id), 'state', 'queue', 'lane', 'deadline_ms', 'cancel', 'due_ms'))
  if not state then
    end_lost(keys_of(id), id, lost_tail)
  elseif state ~= 'queued' then
    redis.call('ZREM', pending, id)
  elseif not end_early(id, deadline_ms, cancel, queue, due_ms) then
    num_left = num_left + 1
    local line = line_of(pending, queue, lane)
    if redis.call('ZSCORE', line, id) or redis.call('ZSCORE', delayed, id) then return end
    redis.call('ZADD', line, since, id)
    if deadline_ms then redis.call('ZADD', deadlines, deadline_ms, id) end
  end
end

local looked = redis.call('ZRANGE', pending, offset, offset + max_looks - 1, 'WITHSCORES')
for place = 1, #looked, 2 do
  local since = tonumber(looked[place + 1])
  if since + patience_ms > now then break end
  num_looked = num_looked + 1
  attempt(pending, looked[place], look, since)
end
redis.call('HSET', sweep, 'offset', num_looked < max_looks and 0 or offset + num_left)

-- If nothing waits, reset the counts and lines. So what older scripts or a hand have left there is not kept for ever.
if redis.call('EXISTS', pending) == 0 then
  for _, queue in ipairs(queues) do
    for _, lane in ipairs(LANES) do redis.call('UNLINK', line_of(pending, queue, lane)) end
  end
  redis.call('DEL', waiting)
end
redis.call('XTRIM', dead, 'MINID', string.format('%.0f', now - 1000 * letter_s))
pcall(trim_outbox, leases, now, max_outbox, letter_s)
return swept
