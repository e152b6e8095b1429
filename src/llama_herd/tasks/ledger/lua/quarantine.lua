-- QUARANTINE: the poisoned jobs, the newest first.
-- needs: declare
-- keys: quarantine
-- args: most#, before, after (what a record's key has before and after the id)
-- more records: (of the jobs)
-- kept: for gateways
-- Answers, one for each job: id, when, worker, queue, attempts. Jobs without a record are left out. Without records among
--       the keys: {declare, their keys}
local ids = #records == 0 and redis.call('ZREVRANGE', key.quarantine, 0, most - 1) or {}
if #ids > 0 then return ask_for(ids, before, after) end
local jobs = {}
for _, job in ipairs(records) do
  local id = name_in(job, before, after)
  local since, record = redis.call('ZSCORE', key.quarantine, id), redis.call('HMGET', job, 'worker', 'queue', 'attempts')
  if since and record[2] then jobs[#jobs + 1] = {id, since, unpack(record)} end
end
return jobs
