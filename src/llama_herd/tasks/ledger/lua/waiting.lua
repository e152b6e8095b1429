-- The waiting jobs: `pending` lists all of them, `delayed` those that are not due yet, and `waiting` counts both, and
-- their tokens, for each queue. The counts change only when a job enters or leaves these sets, so they cannot drift.
local function count(key, queue, jobs, tokens)
  local left = redis.call('HINCRBY', key.waiting, queue .. ':jobs', jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':tokens', tokens)
  if left == 0 then redis.call('HDEL', key.waiting, queue .. ':jobs', queue .. ':tokens', queue .. ':delayed') end
end

local function begin_waiting(key, id, since, queue, tokens)
  if redis.call('ZADD', key.pending, since, id) == 1 then count(key, queue, 1, tokens) end
end

local function count_delayed(key, queue, jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':delayed', jobs)
end

-- Raises an error if a count is damaged, or would become too large.
local function check_counts(key, queue, tokens)
  local counts = redis.call('HMGET', key.waiting, queue .. ':jobs', queue .. ':tokens', queue .. ':delayed')
  for place = 1, 3 do
    local num = counts[place] or '0'
    if not string.find(num, '^-?%d+$') or math.abs(num) + tokens >= 2 ^ 53 then
      error('the counts of waiting jobs are damaged or too large')
    end
  end
end

-- Lets a new job wait. A delayed job has no message until it is due. Raises an error, and writes nothing, if a key has
-- another type. A full Redis refuses the first write; if it takes that one, it takes the others, too.
local function begin_to_wait(key, id, due, is_delayed, queue, tokens)
  check_counts(key, queue, tokens)
  local delays = is_delayed and redis.call('ZADD', key.delayed, due, id) or 0
  local waits = redis.pcall('ZADD', key.pending, due, id)
  if type(waits) == 'table' then
    if delays == 1 then redis.call('ZREM', key.delayed, id) end
    error(waits.err)
  end
  if delays == 1 then count_delayed(key, queue, 1) end
  if waits == 1 then count(key, queue, 1, tokens) end
end

local function stop_waiting(key, id, queue, tokens)
  if redis.call('ZREM', key.delayed, id) == 1 then count_delayed(key, queue, -1) end
  if redis.call('ZREM', key.pending, id) == 1 then count(key, queue, -1, -tokens) end
end
