-- Accepts a job that does not exist yet, if it may wait: its record, its pending mark and its message are made together.
-- needs: push, record, kept

-- An error after the first write would leave a job that is counted, but that no worker can claim.
local function check(is_right, what)
  if not is_right then error(what) end
end

-- Larger numbers are not exact in Lua, and their sums could overflow.
local function is_number(text) return string.find(text, '^%d+$') and tonumber(text) < 2 ^ 53 end

-- Whether ended jobs keep too much; once a call.
local is_beyond

-- The messages that this call has found in lists, and in all lists of a queue.
local num_of, num_in = {}, {}

local function length(list) return checked_num(redis.pcall('LLEN', list), list) end

-- Returns the list of a job's message. Raises an error if it is none, or not of the job's tenant.
local function list_of(job)
  local list = own_queue(job.job, job.queue .. job.lane)
  num_of[list] = num_of[list] or length(list)
  return list
end

local function num_messages(queue)
  local num = 0
  for _, lane in ipairs(LANES) do
    local list = queue .. lane
    num = num + (num_of[list] or length(list))
  end
  return num
end

-- Returns what waits for a queue: {jobs, tokens, jobs taken lately, in how many ms}, and the counts of jobs, tokens and
-- delayed jobs as they are kept.
-- Bare messages count as jobs; their tokens are unknown before the claim. The lists do not tell them from messages of
-- recorded jobs. So the count is the larger of two: recorded jobs that wait, or messages plus delayed jobs, which have
-- no message. A sum of both would count most jobs twice, and refuse too early.
local function flow_of(key, queue, now)
  local counts = redis.call('HMGET', key.waiting,
    queue .. ':jobs', queue .. ':tokens', queue .. ':delayed', queue .. ':delayedtokens',
    queue .. ':taken', queue .. ':since')
  num_in[queue] = num_in[queue] or num_messages(queue)
  local num_jobs = math.max(tonumber(counts[1] or 0), num_in[queue] + (counts[3] or 0))
  return {num_jobs, tonumber(counts[2] or 0), math.floor(counts[5] or 0), now - (counts[6] or now)}, counts
end

-- `job`: its key and its id, and what `record.lua` takes. `max_jobs`, `max_tokens`: how much may wait for its queue; 0: no
-- limit. Raises an error, and accepts nothing, if the job could not be pushed later, or if a number cannot be read.
-- Returns: submitted | exists (the same job has this id) | conflict (another job has it) | queue_full | tokens_full |
--       kept_full, then the bytes that ended jobs keep, and how many they may; else,
--       if the id is free, what waits without this job
local function accept(key, job, now, max_jobs, max_tokens)
  local list, deadline_ms = list_of(job), job.deadline_ms
  check(#job.id <= 128 and string.find(job.id, '^[%w._:-]+$'), 'the id cannot name a job')
  check(string.find(job.envelope, '@tag@', 1, true), 'the envelope has no gap for a tag')
  check(deadline_ms == '' or is_number((string.gsub(deadline_ms, '^%+', ''))), 'the deadline is not a time in milliseconds')
  check(job.not_before == '' or is_number(job.not_before), 'not_before is not a time in milliseconds')
  check(#job.webhook <= 2048, 'the webhook is too long')
  check(#job.secret <= 94, 'the secret of the webhook is too long')
  check(is_number(job.tokens), 'the estimated tokens are not a number')
  check(job.keep_s == '' or is_number(job.keep_s), 'keep_s is not a number of seconds')

  local known = redis.call('HMGET', job.job, 'state', 'body', 'webhook_secret')
  local is_same = known[2] == job.body and (known[3] or '') == job.secret
  if known[1] then return is_same and 'exists' or 'conflict' end

  if is_beyond == nil then is_beyond = beyond_kept(key, now) or false end
  if is_beyond then return 'kept_full', is_beyond end

  local flow, counts = flow_of(key, job.queue, now)
  local num_jobs, num_tokens = flow[1], flow[2]
  if max_jobs > 0 and num_jobs >= max_jobs then return 'queue_full', flow end
  -- A job that exceeds the limit by itself is accepted if nothing else waits.
  if max_tokens > 0 and num_tokens > 0 and num_tokens + tonumber(job.tokens) > max_tokens then return 'tokens_full', flow end

  key.job = job.job
  if write_record(key, job.id, now, job, 0, counts) <= now then
    put(list, job.envelope, job.id, 1, now)
    num_in[job.queue] = num_in[job.queue] + 1
  end
  return 'submitted', flow
end

-- Adds to an answer some of the queues that are served, if no worker serves this one. The job is accepted by then, so
-- a spoilt key is no error, hence pcall.
local function add_served(answer, key, queue, since)
  if (tonumber(redis.pcall('ZSCORE', key.served, queue)) or 0) >= since then return end
  for _, other in ipairs(redis.pcall('ZRANGEBYSCORE', key.served, since, '+inf', 'LIMIT', 0, 100)) do
    answer[#answer + 1] = other
  end
end
