-- BEAT: store the report of a worker for each of its tenants. It expires if no further report comes.
-- needs: clock, pauses, caught
-- args: name, life_s#, max_served# (queues to remember), max_asked# (other workers to count)
-- list beats: keys report, workers (the index of such reports), served, room, paused, drained, kept;
--       args queue (that it serves; empty: none), free# (rows), kept_limit (how many bytes ended jobs may keep; 0: no
--       limit; empty: unknown)
-- list own: args beat#, field, value (of the reports, where tenants do not get the same)
-- pairs common:
-- Answers, for each tenant: free rows of other workers of the queue, or what is wrong with a key; how many these are;
--       when the pause of the queue ends, and when the drain of the worker does (ms; 0: there is none); which process has
--       written the report before (empty: it had not loaded its model; null: there was none)
local now = now_ms()

-- In `room` a worker's score is the second at which its report expires, and its free rows as a fraction of that: so one
-- that is silent, or has come back with another model, counts no longer.
local MOST_FREE = 4096

-- How long it is remembered which queues the last workers have served, and how much ended jobs might keep.
local SERVED_S, LIMIT_S, HOUR_MS = 90 * 86400, 86400, 3600000

local function elsewhere(room)
  local free, num = 0, 0
  redis.call('ZREMRANGEBYSCORE', room, '-inf', now / 1000)
  local names = redis.call('ZREVRANGE', room, 0, max_asked - 1, 'WITHSCORES')
  for place = 1, #names, 2 do
    if names[place] ~= name then free, num = free + names[place + 1] % 1 * MOST_FREE, num + 1 end
  end
  return free, num
end

-- Called once an hour, and for a new limit.
local function remember(one)
  redis.call('EXPIRE', one.served, SERVED_S)
  if redis.call('PTTL', one.kept) < 1000 * LIMIT_S then redis.call('EXPIRE', one.kept, LIMIT_S) end
end

local function limit_kept(one)
  if one.kept_limit == '0' then
    redis.call('HDEL', one.kept, 'limit')
  elseif one.kept_limit ~= '' then
    if redis.call('HSET', one.kept, 'limit', one.kept_limit) == 1 then remember(one) end
  end
end

local function beat(one)
  local before_ms, process = unpack(redis.call('HMGET', one.report, 'beat_ms', 'process'))
  one.before = before_ms and process
  redis.call('DEL', one.report)
  redis.call('HSET', one.report, 'beat_ms', now, unpack(common))
  if #one > 0 then redis.call('HSET', one.report, unpack(one)) end
  redis.call('EXPIRE', one.report, life_s)
  redis.call('ZREMRANGEBYSCORE', one.workers, '-inf', now)
  redis.call('ZADD', one.workers, now + 1000 * life_s, name)
  redis.call('EXPIRE', one.workers, life_s)
  if one.queue ~= '' then
    redis.call('ZADD', one.served, now, one.queue)
    for _, other in ipairs(redis.call('ZRANGE', one.served, 0, -1 - max_served)) do
      redis.call('ZREM', one.served, other)
    end
    redis.call('ZADD', one.room, math.ceil(now / 1000) + life_s + math.min(one.free, MOST_FREE - 1) / MOST_FREE, name)
    redis.call('EXPIRE', one.room, life_s)
  else
    redis.call('ZREM', one.room, name)
  end
  limit_kept(one)
  if math.floor((before_ms or 0) / HOUR_MS) < math.floor(now / HOUR_MS) then remember(one) end
  return elsewhere(one.room)
end

for _, its in ipairs(own) do
  local one = beats[its.beat]
  one[#one + 1], one[#one + 2] = its.field, its.value
end
local answers = {}
for place, one in ipairs(beats) do
  local is_done, answer, num_others = pcall(beat, one)
  answers[place] = {
    is_done and answer or words_of(answer), num_others or 0,
    paused_until(one.paused, one.queue, now), paused_until(one.drained, name, now), one.before or false}
end
return answers
