-- QUARANTINE: the poisoned jobs, the newest first.
-- KEYS: 1 quarantine, then the jobs' records
-- ARGV: 1 most jobs, 2 and 3 what a record's key has before and after the id
-- Answers, one for each job: id, when, worker, queue, starts. Jobs without a record are left out. Without records among
--       the keys: {declare, their keys}
local jobs, before, after = {}, ARGV[2], ARGV[3]
local ids = #KEYS == 1 and redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1) or {}
if #ids > 0 then return ask_for(ids, before, after) end
for place = 2, #KEYS do
  local id = name_in(KEYS[place], before, after)
  local since, record = redis.call('ZSCORE', KEYS[1], id), redis.call('HMGET', KEYS[place], 'worker', 'queue', 'starts')
  if since and record[2] then jobs[#jobs + 1] = {id, since, unpack(record)} end
end
return jobs
