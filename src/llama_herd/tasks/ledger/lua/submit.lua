-- SUBMIT: accept a job. Its record, its pending mark and its message are made together.
-- needs: clock, accept
-- keys: job, pending, deadlines, delayed, waiting, served, kept, queue
-- args: id, max_jobs#, max_tokens# (that may wait for this queue; 0: no limit), body, envelope, deadline_ms, not_before,
--       tokens (see `record.lua`), lane (none: the queue's plain list),
--       served_ms# (a queue is served for so long after a worker's report; none: nobody asks whether it is),
--       webhook (none: not at an address of its own), secret (none: the tenant's), keep_s (none: as all jobs),
--       metadata (none)
-- also lists: (the others of the queue, and pending:<list> of the list in which the job's message is to wait)
-- kept: for producers
-- Raises an error, and accepts nothing, if the job could not be pushed later, or if a number cannot be read.
-- Answers: submitted | exists (the same job has this id) | conflict (another job has it) | queue_full | tokens_full,
--       kept_full (ended jobs keep too much; then: their bytes, and the limit),
--       then: waiting jobs and tokens without this job; jobs taken lately; in how many ms; if that is asked and no
--       worker serves the queue: some queues that are served
local now = now_ms()
local job = {job = key.job, queue = key.queue, id = id, body = body, envelope = envelope, deadline_ms = deadline_ms,
  not_before = not_before, tokens = tokens, lane = lane or '', webhook = webhook or '', secret = secret or '',
  keep_s = keep_s or '', metadata = metadata or ''}
local kind, flow = accept(key, job, now, max_jobs, max_tokens)
local answer = {kind, unpack(flow or {0, 0, 0, 0})}
if kind == 'submitted' and served_ms then add_served(answer, key, key.queue, now - served_ms) end
return answer
