-- PREPARE: note which claimed jobs a worker is about to prepare, or that it has finished preparing them. If it dies in
-- between, that counts against these jobs.
-- KEYS: for each job its record
-- ARGV: 1 owner, 2 '1': begins, '0': has finished, then for each job its epoch
-- Answers, one for each job: ok | fenced
local answers = {}
for place, job in ipairs(KEYS) do
  local record, epoch = redis.pcall('HMGET', job, 'owner', 'epoch'), ARGV[2 + place]
  if record[1] ~= ARGV[1] or record[2] ~= epoch then
    answers[place] = 'fenced'
  else
    redis.call('HSET', job, 'preparing', ARGV[2] == '1' and epoch or '')
    answers[place] = 'ok'
  end
end
return answers
