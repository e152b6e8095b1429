-- SUBMIT: accept a job. Its record, its pending mark and its message come into being together.
-- KEYS: 1 job record, 2 pending, 3 queue
-- ARGV: 1 id, 2 body, 3 envelope, 4 deadline (ms or ''), 5 most messages in the queue (0: no limit)
-- Answers: submitted | exists (this id names the same job) | conflict (it names another) | queue_full, depth
local job, pending, queue = KEYS[1], KEYS[2], KEYS[3]
local id, body, envelope, deadline_ms, max_queue = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local known = redis.call('HGET', job, 'body')
if known then return {known == body and 'exists' or 'conflict', 0} end

local depth = redis.call('LLEN', queue)
if max_queue > 0 and depth >= max_queue then return {'queue_full', depth} end

local now = now_ms()
write_record(job, pending, id, now, body, queue, envelope, deadline_ms)
push(job, id, now)
return {'submitted', depth + 1}
