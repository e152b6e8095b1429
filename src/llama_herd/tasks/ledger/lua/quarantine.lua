-- QUARANTINE: the poisoned jobs, the newest first.
-- KEYS: 1 quarantine
-- ARGV: 1 most jobs, 2 and 3 what a record's key has before and after the id
-- Answers, one for each job: id, when, worker, queue, starts. Jobs without a record are left out.
local jobs = {}
local listed = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for place = 1, #listed, 2 do
  local id = listed[place]
  local record = redis.call('HMGET', ARGV[2] .. id .. ARGV[3], 'worker', 'queue', 'starts')
  if record[2] then jobs[#jobs + 1] = {id, listed[place + 1], unpack(record)} end
end
return jobs
