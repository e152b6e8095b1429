-- SUBMIT_MANY: accept jobs, one after the other as SUBMIT would. What is wrong with one affects no other.
-- KEYS: 1 pending, 2 delayed, 3 waiting, 4 served, 5 pending:deadlines, then for each job: job record, queue;
--       then, once each: the lists of these queues, and pending:<list> of the lists in which messages are to wait
-- ARGV: 1 most jobs and 2 most tokens that may wait for a queue (0: no limit),
--       3 a queue is served for so long after a worker's report (ms),
--       then for each job: id, webhook or '', its secret or '', body, envelope, deadline (ms, + and ms after it is due, or ''),
--       not before (ms or ''), estimated tokens, lane
-- Answers, one for each job: submitted | exists | conflict | all that SUBMIT answers, if the queue is full or, for its
--       first job that is submitted, if no worker serves it | {error, message}: nothing of this job was accepted
local pending, delayed, waiting, served = unpack(KEYS, 1, 4)
local max_jobs, max_tokens, served_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local now = now_ms()
local since = now - served_ms
local is_looked_up, answers = {}, {}

local function submit(key, id, at)
  local kind, flow = accept(key, id, now, at, max_jobs, max_tokens)
  if not flow or kind == 'submitted' and is_looked_up[key.queue] then return kind end
  local answer = {kind, unpack(flow)}
  if kind ~= 'submitted' then return answer end
  is_looked_up[key.queue] = true
  add_served(answer, served, key.queue, since)
  return answer
end

for job = 0, (#ARGV - 3) / 9 - 1 do
  local k, a = 6 + 2 * job, 4 + 9 * job
  local key = {job = KEYS[k], pending = pending, delayed = delayed, waiting = waiting, queue = KEYS[k + 1],
    webhook = ARGV[a + 1], secret = ARGV[a + 2]}
  local is_right, answer = pcall(submit, key, ARGV[a], a + 3)
  -- From Redis 7 on an error of a command is a table.
  answers[job + 1] = is_right and answer or {'error', type(answer) == 'table' and answer.err or answer}
end
return answers
