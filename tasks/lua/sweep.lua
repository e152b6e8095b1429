-- SWEEP: push the messages of jobs again that nobody is going to deliver. Any worker, about once a second.
-- KEYS: 1 pending, 2 leases, 3 sweep (last: time of the last sweep, hold: do nothing before, offset: where
--       among the waiting jobs to look next)
-- ARGV: 1 prefix and 2 suffix of a job record's key, 3 shortest time between sweeps (ms),
--       4 a longer time than this is a gap (ms), 5 lease (ms), 6 patience (ms), 7 most pushes,
--       8 most waiting jobs to look at
-- Answers: {swept, ids ...} | {early} | {held}
-- The records' keys are built here, so this script needs a single Redis, not a cluster.
local pending, leases, sweep = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, patience_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local max_pushes, max_looks = tonumber(ARGV[7]), tonumber(ARGV[8])
local now, swept = now_ms(), {'swept'}

local times = redis.call('HMGET', sweep, 'last', 'hold', 'offset')
local last, hold, offset = tonumber(times[1] or 0), tonumber(times[2] or 0), tonumber(times[3] or 0)
if now - last < tonumber(ARGV[3]) and now >= last then return {'early'} end
redis.call('HSET', sweep, 'last', now)

-- After a gap (Redis stood still, no worker was there) live owners first get the time to renew their leases.
-- A sweep that was held is not held again, else slow sweepers would never sweep.
if hold <= last and now - last > tonumber(ARGV[4]) then
  hold = now + lease_ms
  redis.call('HSET', sweep, 'hold', hold)
end
if now < hold then return {'held'} end

-- Returns how long to wait for a claim: the more often in vain, the longer, patience x 1, 2, 4 ... 256.
local function push_again(job, id)
  local waits = redis.call('HINCRBY', job, 'waits', 1)
  push(job, id, now)
  swept[#swept + 1] = id
  return patience_ms * 2 ^ math.min(waits - 1, 8)
end

-- Running jobs whose lease is over: their worker died, froze, or dropped them.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, max_pushes)) do
  local job = ARGV[1] .. id .. ARGV[2]
  if redis.call('HGET', job, 'state') == 'running' then
    redis.call('ZADD', leases, now + push_again(job, id), id)
  else
    redis.call('ZREM', leases, id)
  end
end

-- When the message nearest the consuming end of a queue was pushed; an empty queue is consumed up to now.
-- Messages that came without our client tell no time and are passed over; long ones are never ours.
local fronts = {}
local function front_ms(queue)
  if not fronts[queue] then
    fronts[queue] = now
    for place = -1, -32, -1 do
      local message = redis.call('LINDEX', queue, place)
      if not message then break end
      local pushed = #message < 16384 and string.match(message, '"delivery_tag": ?"[%w._:-]+:%d+:(%d+)"')
      if pushed then
        fronts[queue] = tonumber(pushed)
        break
      end
    end
  end
  return fronts[queue]
end

-- Waiting jobs that were overtaken: what came after them by more than our patience is being consumed. Age alone
-- would copy a whole backlog. The score is when the job was accepted, put off by each push in vain.
local looked = redis.call('ZRANGE', pending, offset, offset + max_looks - 1, 'WITHSCORES')
local next_offset = offset
for place = 1, #looked, 2 do
  local id, since = looked[place], tonumber(looked[place + 1])
  if since + patience_ms > now or #swept > max_pushes then break end
  local job = ARGV[1] .. id .. ARGV[2]
  local state, queue = unpack(redis.call('HMGET', job, 'state', 'queue'))
  if state ~= 'queued' then
    redis.call('ZREM', pending, id)
  elseif since + patience_ms <= front_ms(queue) then
    redis.call('ZADD', pending, now + push_again(job, id) - patience_ms, id)
  else
    next_offset = next_offset + 1
  end
end
if next_offset - offset < max_looks then next_offset = 0 end
redis.call('HSET', sweep, 'offset', next_offset)
return swept
