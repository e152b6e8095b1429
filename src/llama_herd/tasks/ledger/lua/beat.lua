-- BEAT: store the report of a worker for each of its tenants. It expires if no further report comes.
-- KEYS: for each tenant: the report, the index of such reports, served, room
-- ARGV: 1 name, 2 life (s), 3 most queues to remember, 4 most workers to ask for room, 5 number of fields that are the
--       same for all tenants, then field, value, ..., then for each tenant: the queue that it serves or '', rows that are
--       free, '1' if it asks for room elsewhere, number of fields, then field, value, ...
-- Answers, for each tenant: free rows of other workers of the queue, as far as was asked, or what is wrong
local name, life_s, max_served, max_asked = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local first_own = 6 + 2 * ARGV[5]

-- In `room` a worker's score is the second at which its report expires, and its free rows as a fraction of that: so one
-- that is silent, or has come back with another model, has no room.
local MOST_FREE = 4096

local function free_elsewhere(room)
  local free = 0
  redis.call('ZREMRANGEBYSCORE', room, '-inf', now / 1000)
  local names = redis.call('ZREVRANGE', room, 0, max_asked - 1, 'WITHSCORES')
  for place = 1, #names, 2 do
    if names[place] ~= name then free = free + names[place + 1] % 1 * MOST_FREE end
  end
  return free
end

local function beat(k, a)
  local report, workers, served, room = KEYS[k], KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local queue, free, num_own = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 3])
  redis.call('DEL', report)
  redis.call('HSET', report, 'beat_ms', now, unpack(ARGV, 6, first_own - 1))
  if num_own > 0 then redis.call('HSET', report, unpack(ARGV, a + 4, a + 3 + 2 * num_own)) end
  redis.call('EXPIRE', report, life_s)
  redis.call('ZREMRANGEBYSCORE', workers, '-inf', now)
  redis.call('ZADD', workers, now + 1000 * life_s, name)
  if queue ~= '' then
    redis.call('ZADD', served, now, queue)
    for _, other in ipairs(redis.call('ZRANGE', served, 0, -1 - max_served)) do redis.call('ZREM', served, other) end
  end
  if free > 0 then
    redis.call('ZADD', room, math.ceil(now / 1000) + life_s + math.min(free, MOST_FREE - 1) / MOST_FREE, name)
    redis.call('EXPIRE', room, life_s)
  else
    redis.call('ZREM', room, name)
  end
  return ARGV[a + 2] == '1' and free_elsewhere(room) or 0
end

local answers, a = {}, first_own
for k = 1, #KEYS, 4 do
  local is_done, answer = pcall(beat, k, a)
  answers[#answers + 1] = is_done and answer or (type(answer) == 'table' and answer.err or tostring(answer))
  a = a + 4 + 2 * ARGV[a + 3]
end
return answers
