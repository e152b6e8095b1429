-- PLACE: how many jobs wait before each of these, and how fast jobs are taken.
-- needs: clock
-- keys: pending, waiting
-- list jobs: keys job; args id
-- kept: for clients
-- Answers, for each: nothing for a job that does not wait; else its place, in how many ms it is due (0: it is), jobs
--       taken lately from its queue, in how many ms
-- The place counts waiting jobs of the tenant by the time they were accepted, but no more than wait for this model.
local now, flows = now_ms(), {}

-- Jobs that wait in a queue, and how fast they are taken.
local function flow_of(queue)
  if not flows[queue] then
    flows[queue] = redis.call('HMGET', key.waiting, queue .. ':jobs', queue .. ':taken', queue .. ':since')
  end
  return flows[queue]
end

local answers = {}
for number, one in ipairs(jobs) do
  local rank = redis.call('ZRANK', key.pending, one.id)
  answers[number] = false
  if rank then
    local job = redis.call('HMGET', one.job, 'queue', 'due_ms', 'retry_ms')
    local flow = flow_of(job[1] or '')
    local place = math.min(rank + 1, math.max(1, tonumber(flow[1]) or rank + 1))
    local due_in = math.max(0, math.floor((tonumber(job[3] or job[2]) or now) - now))
    local taken, span = math.floor(tonumber(flow[2]) or 0), math.floor(now - (tonumber(flow[3]) or now))
    answers[number] = {place, due_in, taken, span}
  end
end
return answers
