-- SWEEP: push the messages of jobs that nobody else will deliver: lost messages, and those of delayed jobs that are
-- due. Every worker calls it about once a second.
-- needs: clock, front, waiting, lost, pauses, full
-- keys: pending, delayed, leases, waiting, sweep (last: time of the last sweep, hold: do nothing before,
--       gaps: how many sweeps in a row came late, offset: where among the waiting jobs to look next, awake: since when
--       some worker sweeps, front:<list>: the time of the list's next message then), dead (the letters), served,
--       deadlines, webhook, outbox, outbox_entries, outbox_dead, kept, ended, failed, untold, paused, quarantine
-- args: before, after (what a record's key has before and after the id), events_after (the same of the events' key),
--       channels (their prefix), between_ms# (shortest time between sweeps), gap_ms# (a longer time than this is a gap),
--       lease_ms#, patience_ms#,
--       max_pushes# (of overtaken messages), max_looks# (at waiting jobs), max_taken# (back, of dead workers),
--       ttl_s# (life of an ended job), failed_s# (its least, if it failed),
--       letter_s# (life of a dead letter, and of a quarantined job),
--       late_tail, cancelled_tail, lost_tail, unserved_tail (of final events: deadline, cancelled, record gone, no worker),
--       unserved_ms# (a job ends after so long if no worker has ever served its queue; 0: never),
--       away_ms# (longer than this without a sweep, and all workers were away), max_outbox# (messages)
-- list standing: args queue (that may be without a worker)
-- builds keys: those of the records, so this script needs a single Redis, not a cluster
-- Answers: {swept, ids of lost messages ...} | {early} | {held}
local now, swept = now_ms(), {'swept'}

local turn = redis.call('HMGET', key.sweep, 'last', 'hold', 'gaps', 'offset', 'awake')
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
go_on_when_full(key.sweep)
redis.call('HSET', key.sweep, 'last', now, 'hold', hold, 'gaps', gaps, 'awake', awake)
redis.call('EXPIRE', key.sweep, 86400) -- as in DUE_FOR_SWEEP

local function job_key(id) return before .. id .. after end

-- How long to wait for a claim after so many pushes in vain: patience x 1, 2, 4 ... 256.
local function wait_ms(waits) return patience_ms * 2 ^ math.min(math.max((tonumber(waits) or 0) - 1, 0), 8) end

-- Puts off a job that cannot be handled, longer each time. It is counted as a wait, so that the time in the future is no
-- trace of another clock. A record that does not exist is not made.
local function put_off(index, id)
  local job, waits = job_key(id), 9
  if redis.call('EXISTS', job) == 1 then
    local counted = redis.pcall('HINCRBY', job, 'waits', 1)
    if type(counted) == 'number' then waits = counted else redis.pcall('HSET', job, 'waits', waits) end
  end
  redis.call('ZADD', index, now + wait_ms(waits) - patience_ms, id)
end

-- Calls `act` for one job. If its record is damaged, that job is put off, and the others go on.
local function attempt(index, id, act, ...)
  if not pcall(act, id, ...) then put_off(index, id) end
end

-- A lease that lies further away than its own length was written before the clock was put back: it is set to a full
-- lease from now, and a longer wait than possible to the shortest.
local function shorten(id, score)
  local state, lease, waits = unpack(redis.call('HMGET', job_key(id), 'state', 'lease', 'waits'))
  if state ~= 'running' then
    redis.call('ZREM', key.leases, id)
  elseif tonumber(lease) == score then
    redis.call('HSET', job_key(id), 'lease', now + lease_ms)
    redis.call('ZADD', key.leases, now + lease_ms, id)
  elseif score > now + wait_ms(waits) then
    redis.call('ZADD', key.leases, now + patience_ms, id)
  end
end

-- Among very many, where to begin differs from sweep to sweep, so that long waits hide no lease.
local beyond = string.format('(%.0f', now + lease_ms)
local num_beyond = redis.call('ZCOUNT', key.leases, beyond, '+inf')
local first = num_beyond > max_taken and now % (num_beyond - max_taken + 1) or 0
local far = redis.call('ZRANGEBYSCORE', key.leases, beyond, '+inf', 'WITHSCORES', 'LIMIT', first, max_taken)
for place = 1, #far, 2 do attempt(key.leases, far[place], shorten, tonumber(far[place + 1])) end

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
  redis.call('ZREM', key.delayed, id)
  local state, queue, lane, tokens = unpack(redis.call('HMGET', job_key(id), 'state', 'queue', 'lane', 'tokens'))
  if state ~= 'queued' then return end
  count_delayed(key, queue, -1, -(tonumber(tokens) or 0))
  redis.call('ZADD', key.pending, now, id)
  redis.call('ZADD', line_of(key.pending, queue, lane), now, id)
  push(job_key(id), id, now)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', key.delayed, '-inf', now, 'LIMIT', 0, max_looks)) do
  attempt(key.pending, id, deliver)
end

-- Queues that were served at some time, are paused, or may be without a worker: their names are no mistake.
local is_known = {}
for _, queue in ipairs(standing) do is_known[queue] = true end

-- Whether a job has waited for too long, since it was due and since workers are up, in a queue that nobody ever served.
local function is_unserved(queue, due_ms)
  if unserved_ms == 0 or now - math.max(awake, tonumber(due_ms) or 0) <= unserved_ms then return false end
  if is_known[queue] == nil then
    is_known[queue] = redis.call('ZSCORE', key.served, queue) and true or paused_until(key.paused, queue, now) > 0
  end
  return not is_known[queue]
end

local function keys_of(id)
  local own = {job = job_key(id), events = before .. id .. events_after, channel = channels .. id}
  own.ttl_s, own.failed_s = ttl_s, failed_s
  return setmetatable(own, {__index = key})
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
    redis.call('ZREM', key.leases, id)
  elseif end_early(id, deadline_ms, cancel, queue, due_ms) then
    return
  elseif is_on_its_way(waits, pushed_ms, queue .. (lane or '')) then
    redis.call('ZADD', key.leases, now + patience_ms, id)
  else
    redis.call('ZADD', key.leases, now + push_again(job, id, queue .. (lane or '')), id)
    if deadline_ms then redis.call('ZADD', key.deadlines, deadline_ms, id) end
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', key.leases, '-inf', now, 'LIMIT', 0, max_taken)) do
  attempt(key.leases, id, take_back)
end

-- Jobs whose deadline is over. A live owner ends its own.
local function end_late(id)
  local state, queue, deadline_ms, due_ms, lease = unpack(
    redis.call('HMGET', job_key(id), 'state', 'queue', 'deadline_ms', 'due_ms', 'lease'))
  local is_left = state == 'queued'
  if state == 'running' then
    lease = tonumber(lease) or 0
    is_left = (lease <= now or lease > now + lease_ms) and tonumber(redis.call('ZSCORE', key.leases, id)) ~= lease
  end
  if not (is_left and end_early(id, deadline_ms, false, queue, due_ms)) then redis.call('ZREM', key.deadlines, id) end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', key.deadlines, '-inf', now, 'LIMIT', 0, max_looks)) do
  attempt(key.deadlines, id, end_late)
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

-- Returns up to which time the messages of a list have passed. What was taken since the last sweep may still be on its way
-- to a claim, so the front of that sweep counts.
local function passed_ms(list)
  local front, name = front_ms(list, now), 'front:' .. list
  if front > now then return front end
  local before = tonumber(redis.call('HGET', key.sweep, name) or front)
  redis.call('HSET', key.sweep, name, front)
  return math.min(front, before)
end

local function recover_from(list)
  local line = line_of(key.pending, list)
  if redis.call('EXISTS', line) == 0 then return end
  local front, later = passed_ms(list), string.format('(%.0f', now)
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
for _, field in ipairs(redis.call('HKEYS', key.waiting)) do
  local queue = string.match(field, '^(.*):%l+$')
  if queue and not is_named[queue] and pcall(own_queue, key.pending, queue) then
    queues[#queues + 1], is_named[queue] = queue, true
  end
end

-- A list in which no job waits has no front: there may be ever new ones.
for _, field in ipairs(redis.call('HKEYS', key.sweep)) do
  local list = string.match(field, '^front:(.*)$')
  if list and redis.call('EXISTS', line_of(key.pending, list)) == 0 then redis.call('HDEL', key.sweep, field) end
end

-- Each sweep begins at another queue, so that one with many lost messages keeps none from the others; of very many it
-- looks at some.
for place = 1, math.min(#queues, max_looks) do
  for _, lane in ipairs(LANES) do pcall(recover_from, queues[(place + now) % #queues + 1] .. lane) end
end

-- The other waiting jobs, some in each sweep: those to be ended, and those whose line was spoilt, or deleted by hand.
local num_looked, num_left = 0, 0
local function look(id, since)
  local state, queue, lane, deadline_ms, cancel, due_ms = unpack(
    redis.call('HMGET', job_key(id), 'state', 'queue', 'lane', 'deadline_ms', 'cancel', 'due_ms'))
  if not state then
    end_lost(keys_of(id), id, lost_tail)
  elseif state ~= 'queued' then
    redis.call('ZREM', key.pending, id)
  elseif not end_early(id, deadline_ms, cancel, queue, due_ms) then
    num_left = num_left + 1
    local line = line_of(key.pending, queue, lane)
    if redis.call('ZSCORE', line, id) or redis.call('ZSCORE', key.delayed, id) then return end
    redis.call('ZADD', line, since, id)
    if deadline_ms then redis.call('ZADD', key.deadlines, deadline_ms, id) end
  end
end

local looked = redis.call('ZRANGE', key.pending, offset, offset + max_looks - 1, 'WITHSCORES')
for place = 1, #looked, 2 do
  local since = tonumber(looked[place + 1])
  if since + patience_ms > now then break end
  num_looked = num_looked + 1
  attempt(key.pending, looked[place], look, since)
end
redis.call('HSET', key.sweep, 'offset', num_looked < max_looks and 0 or offset + num_left)

-- Keeps the outbox within `max_outbox` messages, and as many dead ones, for `letter_s` each. What is too much is given up:
-- what was put off for long, since it has failed most often, or else the oldest.
local TRIMMED, LONG_MS = 2000, 120000

local function trim_outbox()
  local outbox, entries, dead = key.outbox, key.outbox_entries, key.outbox_dead
  local num = math.min(redis.call('ZCARD', outbox) - max_outbox, TRIMMED)
  if num > 0 then
    local has_failed = redis.call('ZCOUNT', outbox, now + LONG_MS, '+inf') >= num
    local given_up = has_failed and redis.call('ZREVRANGE', outbox, 0, num - 1) or redis.call('ZRANGE', outbox, 0, num - 1)
    for _, message in ipairs(given_up) do
      redis.call('ZREM', outbox, message)
      redis.call('ZADD', dead, now, message)
    end
  end
  local function forget(messages)
    for _, message in ipairs(messages) do
      redis.call('ZREM', dead, message)
      redis.call('HDEL', entries, message)
    end
  end
  forget(redis.call('ZRANGEBYSCORE', dead, '-inf', now - 1000 * letter_s, 'LIMIT', 0, TRIMMED))
  local num_dead = math.min(redis.call('ZCARD', dead) - max_outbox, TRIMMED)
  if num_dead > 0 then forget(redis.call('ZRANGE', dead, 0, num_dead - 1)) end
end

-- If nothing waits, reset the counts and lines. So what a hand has left there is not kept for ever.
if redis.call('EXISTS', key.pending) == 0 then
  for _, queue in ipairs(queues) do
    for _, lane in ipairs(LANES) do redis.call('UNLINK', line_of(key.pending, queue, lane)) end
  end
  redis.call('DEL', key.waiting)
end
redis.call('XTRIM', key.dead, 'MINID', string.format('%.0f', now - 1000 * letter_s))
redis.pcall('ZREMRANGEBYSCORE', key.quarantine, '-inf', now - 1000 * letter_s)
pcall(trim_outbox)
return swept
