-- PREPARE: note which claimed jobs a worker is about to prepare, or that it has finished preparing them. If it dies in
-- between, that counts against these jobs.
-- needs: full
-- args: owner, begins (1: it is about to, 0: it has finished)
-- list jobs: keys job; args epoch
-- Answers, one for each job: ok | fenced
local answers = {}
if jobs[1] then go_on_when_full(jobs[1].job) end
for place, one in ipairs(jobs) do
  local record = redis.pcall('HMGET', one.job, 'owner', 'epoch')
  if record[1] ~= owner or record[2] ~= one.epoch then
    answers[place] = 'fenced'
  else
    redis.call('HSET', one.job, 'preparing', begins == '1' and one.epoch or '')
    answers[place] = 'ok'
  end
end
return answers
