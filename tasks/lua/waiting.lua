-- Which jobs wait: `pending` names all of them, `delayed` those whose time has not come, and `waiting` counts the
-- jobs and tokens of each queue. The counts change only when a job enters or leaves `pending`: they cannot drift.
local function count(key, queue, jobs, tokens)
  local left = redis.call('HINCRBY', key.waiting, queue .. ':jobs', jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':tokens', tokens)
  if left == 0 then redis.call('HDEL', key.waiting, queue .. ':jobs', queue .. ':tokens') end
end

local function begin_waiting(key, id, since, queue, tokens)
  if redis.call('ZADD', key.pending, since, id) == 1 then count(key, queue, 1, tokens) end
end

local function stop_waiting(key, id, queue, tokens)
  redis.call('ZREM', key.delayed, id)
  if redis.call('ZREM', key.pending, id) == 1 then count(key, queue, -1, -tokens) end
end
