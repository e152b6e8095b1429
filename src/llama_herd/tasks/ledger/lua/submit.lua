-- SUBMIT: accept a job. Its record, its pending mark and its message are made together.
-- KEYS: 1 job record, 2 pending, 3 pending:deadlines, 4 delayed, 5 waiting, 6 served, 7 queue, 8 to 18 its other lists,
--       19 pending:<list> of the list in which the job's message is to wait
-- ARGV: 1 id, 2 most jobs and 3 most tokens that may wait for this queue (0: no limit),
--       4 body, 5 envelope, 6 deadline (ms, + and ms after it is due, or ''), 7 not before (ms or ''), 8 estimated tokens,
--       9 lane: what follows the queue's name in the name of the list (absent: the queue's plain list),
--       10 a queue is served for so long after a worker's report (ms; absent or '': nobody asks whether it is),
--       11 webhook: where to tell of its end (absent or '': not at an address of its own),
--       12 the secret that this is signed with (absent or '': the tenant's)
-- Raises an error, and accepts nothing, if the job could not be pushed later, or if a number cannot be read.
-- Answers: submitted | exists (the same job has this id) | conflict (another job has it) | queue_full | tokens_full,
--       then: waiting jobs and tokens without this job; jobs taken lately; in how many ms; if that is asked and no
--       worker serves the queue: some queues that are served
local key = {job = KEYS[1], pending = KEYS[2], delayed = KEYS[4], waiting = KEYS[5], queue = KEYS[7],
  webhook = ARGV[11], secret = ARGV[12]}
local served = KEYS[6]
local id, max_jobs, max_tokens, served_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[10])
local now = now_ms()

local kind, flow = accept(key, id, now, 4, max_jobs, max_tokens)
local answer = {kind, unpack(flow or {0, 0, 0, 0})}
if kind == 'submitted' and served_ms then add_served(answer, served, key.queue, now - served_ms) end
return answer
