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
--       19 tail of the final event of a job whose record is gone, then the queues that may be without a worker
-- Answers: {swept, ids of lost messages ...} | {early} | {held}
-- The records' keys are built here, so this script needs a single Redis, not a cluster.
local pending, delayed, leases, waiting, sweep, dead, served = unpack(KEYS)
local lease_ms, patience_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local max_pushes, max_looks, max_taken = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[15])
local now, swept = now_ms(), {'swept'}

local turn = redis.call('HMGET', sweep, 'last', 'hold', 'gaps', 'offset', 'awake')
local last, hold = tonumber(turn[1] or 0), tonumber(turn[2] or 0)
local gaps, offset, awake = tonumber(turn[3] or 0), tonumber(turn[4] or 0), tonumber(turn[5] or now)
if now - last < tonumber(ARGV[5]) and now >= last then return {'early'} end

-- After a gap (Redis stood still, or there was no worker) live owners first get time to renew their leases.
-- Slow sweepers see nothing but gaps. So the fourth gap in a row holds nothing up; else they would never sweep.
if now - last > tonumber(ARGV[6]) then
  gaps = (gaps + 1) % 4
  hold = gaps > 0 and now + lease_ms or 0
else
  gaps = 0
end
-- While all workers are away, nobody could begin to serve a queue: that time is not counted.
if now - last > math.max(tonumber(ARGV[6]), tonumber(ARGV[18])) or awake > now then awake = now end
redis.call('HSET', sweep, 'last', now, 'hold', hold, 'gaps', gaps, 'awake', awake)
-- A hold longer than a lease was written before the clock of Redis was put back: ignore it.
if now < hold and hold - now <= lease_ms then return {'held'} end

local function job_key(id) return ARGV[1] .. id .. ARGV[2] end

-- Returns how long to wait for a claim: patience x 1, 2, 4 ... 256, longer after each push in vain.
local function push_again(job, id, list)
  local waits = redis.call('HINCRBY', job, 'waits', 1)
  redis.call('HSET', job, 'pushed_ms', push_first(job, id, list, now))
  swept[#swept + 1] = id
  return patience_ms * 2 ^ math.min(waits - 1, 8)
end

-- Calls `act` for one job. If its record is damaged, that job is put off, and the others go on.
local function attempt(index, id, act, ...)
  if not pcall(act, id, ...) then redis.call('ZADD', index, now + patience_ms * 256, id) end
end

-- Delayed jobs that are due. Whenever they were accepted, they go behind the messages that are in the queue now.
local function deliver(id)
  redis.call('ZREM', delayed, id)
  local state, queue = unpack(redis.call('HMGET', job_key(id), 'state', 'queue'))
  if state ~= 'queued' then return end
  count_delayed({waiting = waiting}, queue, -1)
  redis.call('ZADD', pending, now, id)
  push(job_key(id), id, now)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, max_looks)) do
  attempt(pending, id, deliver)
end

-- Queues that were served at some time, or may be without a worker: their names are no mistake.
local is_known = {}
for place = 20, #ARGV do is_known[ARGV[place]] = true end

-- Whether a job has waited for too long, since it was due and since workers are up, in a queue that nobody ever served.
local function is_unserved(queue, due_ms)
  local patience = tonumber(ARGV[16])
  if patience == 0 or now - math.max(awake, tonumber(due_ms) or 0) <= patience then return false end
  if is_known[queue] == nil then is_known[queue] = redis.call('ZSCORE', served, queue) and true end
  return not is_known[queue]
end

local function keys_of(id)
  return {job = job_key(id), events = ARGV[1] .. id .. ARGV[3], channel = ARGV[4] .. id, ttl_s = ARGV[11],
    pending = pending, delayed = delayed, leases = leases, waiting = waiting}
end

-- Ends a job that nobody runs, if its deadline is over, it is cancelled, or nobody will serve its queue. Returns
-- whether it did.
local function end_early(id, deadline_ms, cancel, queue, due_ms)
  local is_late = cancel == 'deadline' or deadline_ms and tonumber(deadline_ms) <= now
  local is_left = not (is_late or cancel) and is_unserved(queue, due_ms)
  if not (is_late or cancel or is_left) then return false end
  local tail = is_late and ARGV[13] or is_left and ARGV[17] or ARGV[14]
  write_end(keys_of(id), id, (is_late or is_left) and 'failed' or 'cancelled', tail)
  return true
end

-- Returns whether a message that was pushed here since the last claim still waits in its list. A time in the future was
-- written before the clock was put back.
local function is_on_its_way(waits, pushed_ms, list)
  local pushed = tonumber(pushed_ms or 0)
  return waits ~= '0' and pushed <= now and pushed + patience_ms > front_ms(list, now)
end

-- Running jobs whose lease is over: their worker died, froze, or dropped them.
local function take_back(id)
  local job = job_key(id)
  local state, queue, lane, deadline_ms, cancel, due_ms, waits, pushed_ms = unpack(
    redis.call('HMGET', job, 'state', 'queue', 'lane', 'deadline_ms', 'cancel', 'due_ms', 'waits', 'pushed_ms'))
  if not state then
    end_lost(keys_of(id), id, ARGV[19])
  elseif state ~= 'running' then
    redis.call('ZREM', leases, id)
  elseif end_early(id, deadline_ms, cancel, queue, due_ms) then
    return
  elseif is_on_its_way(waits, pushed_ms, queue .. (lane or '')) then
    redis.call('ZADD', leases, now + patience_ms, id)
  else
    redis.call('ZADD', leases, now + push_again(job, id, queue .. (lane or '')), id)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, max_taken)) do
  attempt(leases, id, take_back)
end

-- A lease that ends later than possible was written before the clock was put back: it is set to a full lease from now.
local function shorten(id)
  local is_running = redis.call('HGET', job_key(id), 'state') == 'running'
  if is_running then redis.call('HSET', job_key(id), 'lease', now + lease_ms) end
  redis.call('ZADD', leases, now + lease_ms, id)
end

local latest = now + lease_ms + patience_ms * 256
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, latest + 1, '+inf', 'LIMIT', 0, max_taken)) do
  attempt(leases, id, shorten)
end

-- Waiting jobs that were overtaken: messages younger by more than our patience are being taken. By age alone, a whole
-- backlog would be pushed again. The score is when the job was accepted; each push in vain puts it off.
local num_taken, num_looked, num_left = #swept, 0, 0
local function look(id, since)
  local job = job_key(id)
  local state, queue, lane, deadline_ms, cancel, due_ms = unpack(
    redis.call('HMGET', job, 'state', 'queue', 'lane', 'deadline_ms', 'cancel', 'due_ms'))
  if not state then
    end_lost(keys_of(id), id, ARGV[19])
  elseif state ~= 'queued' then
    redis.call('ZREM', pending, id)
  elseif end_early(id, deadline_ms, cancel, queue, due_ms) then
    return
  elseif since + patience_ms <= front_ms(queue .. (lane or ''), now) then
    redis.call('ZADD', pending, now + push_again(job, id, queue .. (lane or '')) - patience_ms, id)
  else
    num_left = num_left + 1
  end
end

local looked = redis.call('ZRANGE', pending, offset, offset + max_looks - 1, 'WITHSCORES')
for place = 1, #looked, 2 do
  local since = tonumber(looked[place + 1])
  if since + patience_ms > now or #swept - num_taken >= max_pushes then break end
  num_looked = num_looked + 1
  attempt(pending, looked[place], look, since)
end
redis.call('HSET', sweep, 'offset', num_looked < max_looks and 0 or offset + num_left)

-- If nothing waits, reset the counts. So a record that somebody has deleted by hand is not counted for ever.
if redis.call('EXISTS', pending) == 0 then redis.call('DEL', waiting) end
redis.call('XTRIM', dead, 'MINID', string.format('%.0f', now - 1000 * ARGV[12]))
return swept
