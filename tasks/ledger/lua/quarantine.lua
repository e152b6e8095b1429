-- QUARANTINE: the jobs that were given up, the last one first.
-- KEYS: 1 quarantine
-- ARGV: 1 most jobs, what a record's key 2 begins and 3 ends with
-- Answers, one a job: id, when, worker, queue, starts. One whose record is forgotten is left out.
local jobs = {}
local listed = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for place = 1, #listed, 2 do
  local id = listed[place]
  local record = redis.call('HMGET', ARGV[2] .. id .. ARGV[3], 'worker', 'queue', 'starts')
  if record[2] then jobs[#jobs + 1] = {id, listed[place + 1], unpack(record)} end
end
return jobs
