-- SUBMIT: accept a job. Its record, its pending mark and its message are made together.
-- KEYS: 1 job record, 2 event stream, 3 pending, 4 delayed, 5 leases, 6 waiting, 7 queue, 8 served (may be absent)
-- ARGV: 1 id, 2 most jobs and 3 most tokens that may wait for this queue (0: no limit),
--       4 body, 5 envelope, 6 deadline (ms, + and ms after it is due, or ''), 7 not before (ms or ''), 8 estimated tokens,
--       9 lane: what follows the queue's name in the name of the list (absent: the queue's plain list),
--       10 a queue is served for so long after a worker's report (ms), only with a key 8,
--       11 webhook: where to tell of its end (absent or '': not at an address of its own)
-- Raises an error, and accepts nothing, if the job could not be pushed later, or if a number cannot be read.
-- Answers: submitted | exists (the same job has this id) | conflict (another job has it) | queue_full | tokens_full,
--       then: waiting jobs and tokens without this job; jobs taken lately; in how many ms; if a key 8 is given and no
--       worker serves the queue: some queues that are served
local key = {job = KEYS[1], pending = KEYS[3], delayed = KEYS[4], waiting = KEYS[6], queue = KEYS[7],
  webhook = ARGV[11]}
local id, max_jobs, max_tokens, body = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local envelope, deadline_ms, not_before, tokens = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local lane, served_ms = ARGV[9] or '', ARGV[10]

-- An error after the first write would leave a job that is counted, but that no worker can claim.
local function check(is_right, what)
  if not is_right then error(what) end
end

-- Larger numbers are not exact in Lua, and their sums could overflow.
local function is_number(text) return string.find(text, '^%d+$') and tonumber(text) < 2 ^ 53 end

redis.call('LLEN', own_queue(key.job, key.queue .. lane))
check(#id <= 128 and string.find(id, '^[%w._:-]+$'), 'the id cannot name a job')
check(string.find(envelope, '@tag@', 1, true), 'the envelope has no gap for a tag')
check(deadline_ms == '' or is_number((string.gsub(deadline_ms, '^%+', ''))), 'the deadline is not a time in milliseconds')
check(not_before == '' or is_number(not_before), 'not_before is not a time in milliseconds')
check(#(key.webhook or '') <= 2048, 'the webhook is too long')
check(is_number(tokens), 'the estimated tokens are not a number')

local known = redis.call('HMGET', key.job, 'state', 'body')
if known[1] then return {known[2] == body and 'exists' or 'conflict', 0, 0, 0, 0} end

local now = now_ms()
local flow = redis.call('HMGET', key.waiting,
  key.queue .. ':jobs', key.queue .. ':tokens', key.queue .. ':taken', key.queue .. ':since', key.queue .. ':delayed')
-- Bare messages count as jobs; their tokens are unknown before the claim. The lists do not tell them from messages of
-- recorded jobs. So the count is the larger of two: recorded jobs that wait, or messages plus delayed jobs, which have
-- no message. A sum of both would count most jobs twice, and refuse too early.
local num_jobs = math.max(tonumber(flow[1] or 0), num_messages(key.queue) + (flow[5] or 0))
local num_tokens = tonumber(flow[2] or 0)

local function answer(kind)
  return {kind, num_jobs, num_tokens, math.floor(flow[3] or 0), now - (flow[4] or now)}
end

local function served_instead()
  local since = KEYS[8] and now - served_ms
  if not since or tonumber(redis.call('ZSCORE', KEYS[8], key.queue) or 0) >= since then return {} end
  return redis.call('ZRANGEBYSCORE', KEYS[8], since, '+inf', 'LIMIT', 0, 100)
end

if max_jobs > 0 and num_jobs >= max_jobs then return answer('queue_full') end
-- A job that exceeds the limit by itself is accepted if nothing else waits.
if max_tokens > 0 and num_tokens > 0 and num_tokens + tonumber(tokens) > max_tokens then return answer('tokens_full') end

if write_record(key, id, now, 4, 0) <= now then push(key.job, id, now) end
local accepted = answer('submitted')
for _, queue in ipairs(served_instead()) do accepted[#accepted + 1] = queue end
return accepted
