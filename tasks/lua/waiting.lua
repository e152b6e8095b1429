-- Which jobs wait: `pending` names all of them, `delayed` those whose time has not come, and `waiting` counts both
-- and the tokens for each queue. The counts change only when a job enters or leaves the two: they cannot drift.
local function count(key, queue, jobs, tokens)
  local left = redis.call('HINCRBY', key.waiting, queue .. ':jobs', jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':tokens', tokens)
  if left == 0 then redis.call('HDEL', key.waiting, queue .. ':jobs', queue .. ':tokens', queue .. ':delayed') end
end

-- Raises the errors that would come of a job which begins to wait, before anything is written of it.
local function check_waiting(key, queue, tokens)
  -- No id is empty: this removes nothing, but finds a key that holds something else.
  redis.call('ZREM', key.pending, '')
  redis.call('ZREM', key.delayed, '')
  local counts = redis.call('HMGET', key.waiting, queue .. ':jobs', queue .. ':tokens', queue .. ':delayed')
  for place = 1, 3 do
    local num = counts[place] or '0'
    if not string.find(num, '^-?%d+$') or math.abs(num) + tokens >= 2 ^ 53 then
      error('the counts of what waits are broken, or too large')
    end
  end
end

local function begin_waiting(key, id, since, queue, tokens)
  if redis.call('ZADD', key.pending, since, id) == 1 then count(key, queue, 1, tokens) end
end

local function count_delayed(key, queue, jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':delayed', jobs)
end

-- It has no message until it is due.
local function begin_delay(key, id, due, queue)
  if redis.call('ZADD', key.delayed, due, id) == 1 then count_delayed(key, queue, 1) end
end

local function stop_waiting(key, id, queue, tokens)
  if redis.call('ZREM', key.delayed, id) == 1 then count_delayed(key, queue, -1) end
  if redis.call('ZREM', key.pending, id) == 1 then count(key, queue, -1, -tokens) end
end
