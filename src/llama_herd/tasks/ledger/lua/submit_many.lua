-- SUBMIT_MANY: accept jobs, one after the other as SUBMIT would. What is wrong with one affects no other.
-- needs: clock, accept, caught
-- keys: pending, delayed, waiting, served, deadlines, kept
-- args: max_jobs#, max_tokens# (that may wait for a queue; 0: no limit),
--       served_ms# (a queue is served for so long after a worker's report)
-- list jobs: keys job, queue; args id, webhook, secret, body, envelope, deadline_ms, not_before, tokens, lane,
--       keep_s, metadata
--       (see `record.lua`)
-- also lists: (those of these queues, and pending:<list> of those in which messages are to wait)
-- kept: for producers
-- Answers, one for each job: submitted | exists | conflict | all that SUBMIT answers, if the queue is full or, for its
--       first job that is submitted, if no worker serves it | {error, message}: nothing of this job was accepted
local now = now_ms()
local is_looked_up, answers = {}, {}

local function submit(job)
  local kind, flow = accept(key, job, now, max_jobs, max_tokens)
  if not flow or kind == 'submitted' and is_looked_up[job.queue] then return kind end
  local answer = {kind, unpack(flow)}
  if kind ~= 'submitted' then return answer end
  is_looked_up[job.queue] = true
  add_served(answer, key, job.queue, now - served_ms)
  return answer
end

for place, job in ipairs(jobs) do
  local is_right, answer = pcall(submit, job)
  answers[place] = is_right and answer or {'error', words_of(answer)}
end
return answers
