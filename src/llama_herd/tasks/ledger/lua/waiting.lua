-- The waiting jobs: `pending` lists all of them, `pending:<list>` those whose message is in one list of a queue,
-- `pending:deadlines` those that have a deadline, `delayed` those that are not due yet. `waiting` counts them, and their
-- tokens, for each queue. The counts change only when a job enters or leaves these sets, so they cannot drift.
local function line_of(pending, queue, lane) return pending .. ':' .. (queue or '') .. (lane or '') end

local function count(key, queue, jobs, tokens)
  local left = redis.call('HINCRBY', key.waiting, queue .. ':jobs', jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':tokens', tokens)
  if left == 0 then
    redis.call('HDEL', key.waiting,
      queue .. ':jobs', queue .. ':tokens', queue .. ':delayed', queue .. ':delayedtokens')
  end
end

local function count_delayed(key, queue, jobs, tokens)
  redis.call('HINCRBY', key.waiting, queue .. ':delayed', jobs)
  redis.call('HINCRBY', key.waiting, queue .. ':delayedtokens', tokens)
end

-- Raises an error if a count is damaged, or would become too large. `counts`: jobs, tokens, delayed and delayed tokens, if
-- they were read before.
local function check_counts(key, queue, tokens, counts)
  counts = counts or redis.call('HMGET', key.waiting,
    queue .. ':jobs', queue .. ':tokens', queue .. ':delayed', queue .. ':delayedtokens')
  for place = 1, 4 do
    local num = counts[place] or '0'
    if not string.find(num, '^-?%d+$') or math.abs(num) + tokens >= 2 ^ 53 then
      error('the counts of waiting jobs are damaged or too large')
    end
  end
end

-- Adds a job to these sets: {{key, score}, ...}. Returns for each whether it is new there. Raises an error, and leaves
-- all as they were, if one has another type. A full Redis refuses the first write; if it takes that one, it takes all.
local function join(id, sets)
  local is_new = {}
  for place, set in ipairs(sets) do
    local added = redis.pcall('ZADD', set[1], set[2], id)
    if type(added) == 'table' then
      for before = 1, place - 1 do
        if is_new[before] then redis.call('ZREM', sets[before][1], id) end
      end
      error(added.err)
    end
    is_new[place] = added == 1
  end
  return is_new
end

-- Lets a job wait from `since` on. A delayed job has no message until then. `deadline_ms`: '' or nothing for none.
local function begin_to_wait(key, id, since, is_delayed, job)
  local sets = {{key.pending, since}, {is_delayed and key.delayed or line_of(key.pending, job.queue, job.lane), since}}
  if job.deadline_ms and job.deadline_ms ~= '' then sets[3] = {key.deadlines, job.deadline_ms} end
  local is_new = join(id, sets)
  if is_delayed and is_new[2] then count_delayed(key, job.queue, 1, job.tokens) end
  if is_new[1] then count(key, job.queue, 1, job.tokens) end
end

-- Returns whether the job was delayed, and so has no message.
local function stop_waiting(key, id, queue, lane, tokens)
  redis.call('ZREM', line_of(key.pending, queue, lane), id)
  redis.call('ZREM', key.deadlines, id)
  local was_delayed = redis.call('ZREM', key.delayed, id) == 1
  if was_delayed then count_delayed(key, queue, -1, -tokens) end
  if redis.call('ZREM', key.pending, id) == 1 then count(key, queue, -1, -tokens) end
  return was_delayed
end
