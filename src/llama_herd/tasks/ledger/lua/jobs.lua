-- JOBS: some of the waiting or of the running jobs, by their place in the list.
-- needs: clock, declare, row
-- keys: list (pending, delayed, leases or pending:<list>)
-- args: place# (to begin at), max_looks#, max_finds# (jobs to look at, and in the answer), before, after (what a record's
--       key has before and after the id), queue (theirs; empty: any), prefix (what their ids begin with),
--       due_ms# (due at this time at the latest; empty: any)
-- more records: (of the jobs to look at)
-- kept: for gateways
-- Answers: now, place to go on at (-1: the list is over), then for each job its row (see row.lua). Without records among
--       the keys: {declare, their keys}
local jobs = {}

local function look(job)
  local id = name_in(job, before, after)
  if string.sub(id, 1, #prefix) ~= prefix or not redis.call('ZSCORE', key.list, id) then return end
  local row, record = row_of(id, job)
  if not row or queue ~= '' and record.queue ~= queue then return end
  if due_ms and (tonumber(record.due_ms) or 0) > due_ms then return end
  jobs[#jobs + 1] = row
end

local ids = #records == 0 and redis.call('ZRANGE', key.list, place, place + max_looks - 1) or {}
if #ids > 0 then return ask_for(ids, before, after) end
for number, job in ipairs(records) do
  if #jobs >= max_finds then return {now_ms(), place + number - 1, unpack(jobs)} end
  look(job)
end
return {now_ms(), #records < max_looks and -1 or place + #records, unpack(jobs)}
